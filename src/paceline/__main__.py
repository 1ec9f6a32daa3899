"""`python -m paceline`, and the command: Ctrl-C while Python still loads the rest ends like one later on, and a request
to terminate leaves nothing half done."""

import os
import signal
import sys
from types import FrameType


class _Terminated(BaseException):
    """Somebody asked this process to end."""


def run() -> int:
    """The command line; its exit code."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        from paceline.cli import main

        return main()
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        return 130
    except _Terminated:
        return 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    os.write(2, b"paceline: terminated\n")  # `print` may be what it came in the middle of
    raise _Terminated


if __name__ == "__main__":
    sys.exit(run())
