"""`paceline chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import tyro
from rich.console import Console

from paceline.cli.answer_summary import learned, logprob_table, summary
from paceline.cli.options import ModelOptions, SamplingOptions, check_drafting, load_model
from paceline.errors import InputError, PromptTooLongError
from paceline.result_files import check_new_folder
from paceline.types import GenerationSettings, Piece, TokenLogprob

if TYPE_CHECKING:
    from paceline.text_model import Model

QUIT, NEW = "/quit", "/new"
HELP = f"{QUIT} or Ctrl-D leaves, {NEW} starts over, Ctrl-C interrupts an answer."


@dataclass(frozen=True)
class Arguments:
    """Hold a conversation in the terminal; every turn sees the turns before it."""

    stats: bool = False
    """Print counts, speed and stage times after each answer, on standard error."""
    save_adapted: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """With --adapt: write what the drafter has become to this new folder when the conversation ends."""
    model: Annotated[ModelOptions, tyro.conf.arg(name="")] = field(default_factory=ModelOptions)
    sampling: Annotated[SamplingOptions, tyro.conf.arg(name="")] = field(default_factory=SamplingOptions)


def run(args: Arguments) -> None:
    """Read turns and answer them until the user leaves."""
    settings = args.sampling.settings()
    console = Console(stderr=True, highlight=False)
    check_drafting(args.sampling, args.model)
    _check_place(args)
    model = load_model(args.model, console)
    if sys.stdin.isatty():
        with suppress(ImportError):  # line editing, where the platform has it
            import readline  # noqa: F401
        console.print(HELP)
    try:
        Chat(model, settings, console, args.stats).run()
    finally:
        _end(args, model, console)


def _check_place(args: Arguments) -> None:
    if args.save_adapted is None:
        return
    if not args.model.adapt:
        raise InputError("--save-adapted came without --adapt, which makes what it would save; add it.")
    check_new_folder(args.save_adapted)


def _end(args: Arguments, model: Model, console: Console) -> None:
    """Say and keep what was learned."""
    if model.adapter is None:
        return
    if args.stats or args.save_adapted is not None:
        console.print(learned(model.adapter.updates), soft_wrap=True)
    if args.save_adapted is not None:
        model.adapter.save(args.save_adapted)
        changed = any(update.kept for update in model.adapter.updates)
        what = "adapted drafter" if changed else "the drafter as it came"
        console.print(f"{what}: {args.save_adapted}", soft_wrap=True)


class Chat:
    """The conversation so far and the terminal it is held in."""

    def __init__(self, model: Model, settings: GenerationSettings, console: Console, stats: bool = False):
        self.model = model
        self.settings = settings
        self.console = console
        self.stats = stats
        self.messages: list[dict[str, str]] = []

    def run(self) -> None:
        """Take turns until /quit, Ctrl-D, or Ctrl-C while no answer is being given."""
        while (line := _read_line()) is not None and line != QUIT:
            if line == NEW:
                self.messages.clear()
            elif line.startswith("/"):
                self.console.print(f"{line.split()[0]} is not a command; {HELP}", markup=False)
            elif line:
                self.turn(line)

    def turn(self, text: str) -> None:
        """Answer one user turn. An interrupted answer is kept as far as it came; an empty one is dropped."""
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        logprobs: list[TokenLogprob] = []
        last: Piece | None = None
        try:
            stream = cast("Generator[Piece]", self.model.stream(list(self.messages), self.settings))
            with closing(stream) as pieces:  # closing cancels the request
                for last in pieces:
                    answer.append(last.text)
                    logprobs += last.logprobs
                    print(last.text, end="", flush=True)
        except KeyboardInterrupt:
            print(" [interrupted]", end="")
        except PromptTooLongError as error:
            self.console.print(f"{error} {NEW} starts over.", markup=False)
        print(flush=True)
        self._keep("".join(answer))
        if self.settings.logprobs is not None:
            self.console.print(logprob_table(logprobs, lambda token: repr(self.model.tokenizer.decode([token]))))
        if self.stats and last is not None and last.statistics is not None:
            self.console.print(summary(last.statistics, last.finish_reason), soft_wrap=True)

    def _keep(self, answer: str) -> None:
        if answer:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()


def _read_line() -> str | None:
    """The next line, stripped; None once the user leaves.

    Raises:
        InputError: a line that is not UTF-8.
    """
    try:
        line = input("> " if sys.stdin.isatty() else "").strip()
        line.encode()
        return line
    except (EOFError, KeyboardInterrupt):
        return None
    except UnicodeError as error:
        raise InputError("a line from standard input is not UTF-8 text; send UTF-8.") from error
