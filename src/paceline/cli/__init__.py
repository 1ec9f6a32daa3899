"""The command line: one module per subcommand, and the only place that turns errors into exit codes.

Exit codes: 0 done; 1 what was looked at is faulty; 2 the user's mistake, `paceline: error: <one sentence>`;
130 interrupted by Ctrl-C; 141 whoever read our output is gone; 143 asked to terminate.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from typing import Annotated, Any, Union, cast

import tyro

from paceline.cli import bench, calibrate, chat, demo, doctor, export, generate, label, policy, report, train, verify
from paceline.errors import InputError, PacelineError

DESCRIPTION = "Make a Hugging Face causal language model answer faster, with the same text."

#: Subcommands by name; each module has `Arguments`, a frozen dataclass, and `run(args)`, whose
#: number, if any, is the exit code.
COMMANDS = {
    "demo": demo,
    "generate": generate,
    "chat": chat,
    "bench": bench,
    "report": report,
    "verify": verify,
    "train": train,
    "label": label,
    "calibrate": calibrate,
    "policy": policy,
    "doctor": doctor,
    "export": export,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code.

    Raises:
        SystemExit: from tyro, 0 after --help and 2 for options that cannot be parsed.
    """
    try:
        run, args = parse(argv)
        code = run(args) or 0
        sys.stdout.flush()
    except PacelineError as error:
        print(f"paceline: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the final flush complains
        return 141
    except OSError as error:
        place = f" {str(error.filename)!r}" if error.filename else ""
        print(f"paceline: error: the system refused{place}: {error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        return 130
    return code


def parse(argv: Sequence[str] | None = None) -> tuple[Callable[[Any], int | None], Any]:
    """The `run` of the chosen subcommand, and its arguments."""
    choices = tuple(
        Annotated[module.Arguments, tyro.conf.subcommand(name, description=module.Arguments.__doc__)]
        for name, module in COMMANDS.items()
    )
    cli = partial(
        tyro.cli,
        cast("type[Any]", Union[choices]),  # noqa: UP007
        prog="paceline",
        description=DESCRIPTION,
        args=argv,
    )
    try:
        with redirect_stderr(io.StringIO()):
            args = cli(console_outputs=False)
    except SystemExit as exit_:
        if (mistake := _refused_value(exit_)) is not None:
            raise mistake from None
        args = cli()  # ends too, and says why
    return next(module.run for module in COMMANDS.values() if isinstance(args, module.Arguments)), args


def _refused_value(exit_: SystemExit) -> InputError | None:
    """What a settings class refused, for which tyro would show a box around its own names of the field."""
    behind: BaseException | None = exit_
    while behind is not None and not isinstance(behind, InputError):
        behind = behind.__context__
    return behind
