"""`paceline generate`: answer one prompt."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from paceline.cli.answer_summary import logprob_table, summary
from paceline.cli.options import ModelOptions, SamplingOptions, check_drafting, load_model, refuse_adapting
from paceline.errors import InputError
from paceline.types import Completion, complete

if TYPE_CHECKING:
    from paceline.text_model import Model

STDIN = "-"


@dataclass(frozen=True)
class Arguments:
    """Answer one prompt, streamed as it is decoded."""

    prompt: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="PROMPT")] = None
    """The prompt; `-` reads it from standard input."""
    prompt_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Read the prompt from this UTF-8 file instead."""
    raw: bool = False
    """Send the prompt as it is, without the chat template."""
    n: int = 1
    """Answers, each with a seed that follows from the request's; several are printed once all are there."""
    stats: bool = False
    """Print counts, speed and stage times after the answer, on standard error."""
    model: Annotated[ModelOptions, tyro.conf.arg(name="")] = field(default_factory=ModelOptions)
    sampling: Annotated[SamplingOptions, tyro.conf.arg(name="")] = field(default_factory=SamplingOptions)


def run(args: Arguments) -> None:
    """Stream the answer to standard output; log-probabilities and statistics go to standard error."""
    settings = args.sampling.settings(raw=args.raw)
    prompt = read_prompt(args.prompt, args.prompt_file)
    console = Console(stderr=True, highlight=False)
    check_drafting(args.sampling, args.model)
    refuse_adapting(args.model, "a drafter learns from many queries and generate answers one")
    model = load_model(args.model, console)
    if args.n != 1:
        for i, completion in enumerate(model.samples(prompt, settings, args.n)):
            print(f"--- {i + 1} of {args.n}\n{completion.text}")
            if args.stats or args.sampling.logprobs is not None:
                console.print(f"--- {i + 1} of {args.n}")
            _report(args, console, model, completion)
        return
    pieces = []
    for piece in model.stream(prompt, settings):
        print(piece.text, end="", flush=True)
        pieces.append(piece)
    print()
    _report(args, console, model, complete(pieces))


def _report(args: Arguments, console: Console, model: Model, completion: Completion) -> None:
    if args.sampling.logprobs is not None:
        console.print(logprob_table(completion.logprobs, lambda token: repr(model.tokenizer.decode([token]))))
    if args.stats:
        console.print(summary(completion.statistics, completion.finish_reason), soft_wrap=True)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the one place that was named.

    Raises:
        InputError: no place or two, a file that cannot be read, text that is not UTF-8.
    """
    if (prompt is None) == (file is None):
        came = "no prompt" if prompt is None else "both a prompt and --prompt-file"
        raise InputError(f"{came} came, but exactly one is expected: PROMPT, --prompt-file FILE, or - for stdin.")
    if file is not None and str(file) != STDIN:
        return _decode(_read(file), str(file))
    if file is not None or prompt == STDIN:
        return _decode(sys.stdin.buffer.read(), "standard input")
    assert prompt is not None
    return _decode(prompt.encode(errors="surrogateescape"), "PROMPT")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"the prompt file {str(file)!r} cannot be read: {error.strerror or error}.") from error


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 text (byte {data[error.start]:#04x} at offset {error.start}); "
            "save it as UTF-8 and try again."
        ) from error
