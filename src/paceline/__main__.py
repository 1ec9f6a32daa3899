"""`python -m paceline`, and the command: Ctrl-C while Python still loads the rest ends like one later on."""

import sys


def run() -> int:
    """The command line; its exit code."""
    try:
        from paceline.cli import main

        return main()
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())
