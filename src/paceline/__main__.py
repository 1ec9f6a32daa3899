"""`python -m paceline`: the command line."""

import sys

from paceline.cli import main

if __name__ == "__main__":
    sys.exit(main())
