"""`paceline export`: a drafter's checkpoint in the form that another server reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from paceline.cli.options import Name
from paceline.errors import InputError
from paceline.result_files import check_new_folder

_EMBEDDED = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Arguments:
    """Write a drafter's checkpoint in another form, once it is shown to serve as it was trained."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """Folder or hub name of a DFlash or EAGLE-3 drafter, in any form; `dflash` and `eagle3` come with the embedded
    target."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """A new folder for it."""
    to: Literal["z-lab", "eagle3", "speculators"] = "speculators"
    """`z-lab` for DFlash and `eagle3` for EAGLE-3 as their authors have it (SGLang, vLLM), `speculators` for both
    (vLLM)."""
    target: Name = None
    """Hugging Face name or folder of its target; the embedded SmolLM2-135M-Instruct where not given."""
    verifier: Name = None
    """The target's name as the server is to find it, written into the speculators form; --target where not given."""


def run(args: Arguments) -> None:
    """Check, write, and say what was written."""
    check_new_folder(args.out)
    if args.verifier is not None and (args.to != "speculators" or not args.verifier):
        raise InputError(
            f"verifier {args.verifier!r} came, but the target's name is written into the speculators form alone; leave "
            "it out, or name the target."
        )
    from paceline.export.run import export
    from paceline.sources import drafter_path, target_folder

    verifier = args.verifier or args.target or _EMBEDDED
    done = export(drafter_path(args.path), args.out, args.to, target_folder(args.target), verifier)
    print(
        f"{args.out}: {done.kind}, written as {args.to}; its serving form drafted {done.tokens_compared} tokens "
        "after random texts as the form that it was trained in."
    )
