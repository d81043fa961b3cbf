"""`python -m espalier` is the command."""

from espalier.cli import main

if __name__ == "__main__":
    main()
