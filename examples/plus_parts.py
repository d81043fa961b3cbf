"""What each part of mntdp-d-plus is worth: from MNTDP-D to it, one part after another.

    python examples/plus_parts.py s_in_mini s_minus_mini --seeds 3

prints, for each stream and learner, the accuracy on the last task and on average, the memory and the seconds, as means
over the seeds with their spread. Runs are kept in runs/parts and not done again.
"""

from pathlib import Path

from search_spaces import SPACES, compare, parser_for

from espalier.learners import MntdpD, Prior

PRIOR, SPACE = Prior("nearest-recoloured"), SPACES["suffix+prefix1+warm"]
LEARNERS = {
    "mntdp-d": MntdpD(),
    "mntdp-d[refit]": MntdpD(refit=True),
    "mntdp-d[prior,space]": MntdpD(PRIOR, SPACE),
    "mntdp-d[prior,space,second-look]": MntdpD(PRIOR, SPACE, tolerance=1.0),
    "mntdp-d[prior,space,second-look,refit]": MntdpD(PRIOR, SPACE, tolerance=1.0, refit=True),
}

if __name__ == "__main__":
    compare(LEARNERS, parser_for(__doc__, Path("runs/parts")).parse_args())
