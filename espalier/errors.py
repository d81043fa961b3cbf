"""The errors a user can cause and cure.

Every message is one sentence that names the thing and says what to do about it; the command line prints it and exits
with 2. Anything else that is raised is a bug in Espalier.
"""


class InputError(Exception):
    """Something the user gave cannot be used as it is."""


class MissingDataError(InputError):
    """A dataset that was asked for is not in the data folder."""
