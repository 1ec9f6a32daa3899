"""`paceline demo`: plain against drafted decoding on the embedded model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.generate import read_prompt
from paceline.cli.options import Count, ModelOptions, Name, load_model
from paceline.errors import PacelineError
from paceline.prompts import Prompt, read_prompts
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.bench.measurement import Measurement
    from paceline.text_model import Model

#: Our own prompts that are shown: an explanation, a calculation, code, an edit.
SHOWN = ("moon", "orchard", "palindrome", "edit")
METHODS = ("plain", "prompt_lookup", "dflash", "ddtree", "mixture")


@dataclass(frozen=True)
class Arguments:
    """Show plain and drafted decoding of the embedded model side by side: same text, more tokens/s."""

    prompt: tyro.conf.Positional[tuple[str, ...]] = ()
    """Prompts; four of ours where not given."""
    max_tokens: int = 24
    """Longest answer, in tokens."""
    drafter: Name = None
    """Folder or hub name of the drafter; the embedded one where not given."""
    tree_budget: Count = None
    """Nodes of the draft tree of ddtree and mixture, root excluded; the drafter's own where not given."""
    threads: Count = None
    """CPU threads; PyTorch's choice where not given."""


def run(args: Arguments) -> None:
    """Answer each prompt by every method, compare, and draw one round.

    Raises:
        PacelineError: a drafted text differs from the plain one.
    """
    console = Console(highlight=False)
    settings = replace(GenerationSettings(args.max_tokens, tree_budget=args.tree_budget), tree_budget=None)
    prompts = _prompts(args.prompt)
    model = load_model(ModelOptions(drafter="none", threads=args.threads), console)
    from paceline.bench.methods import Drafting, build_methods
    from paceline.bench.run import Bench, measure

    drafting = Drafting((args.drafter,) if args.drafter else (), args.tree_budget)
    methods = build_methods(METHODS, model, None, drafting, lambda drafter: {})
    shown: list[Measurement] = []

    def show(measurements: Sequence[Measurement]) -> None:
        shown.extend(measurements)
        _show_prompt(console, model, measurements)

    measure(Bench(model, methods, [(settings, {})]), prompts, show)
    _show_round(console, model, args, prompts[-1], settings)
    _conclude(console, shown)


def _prompts(texts: tuple[str, ...]) -> list[Prompt]:
    if texts:
        return [Prompt("yours", str(i), read_prompt(text, None)) for i, text in enumerate(texts, start=1)]
    return [prompt for prompt in read_prompts(()) if prompt.id in SHOWN]


def _show_prompt(console: Console, model: Model, measurements: Sequence[Measurement]) -> None:
    plain = measurements[0]
    console.print(Text(plain.prompt.text, style="bold"))
    answer = model.tokenizer.decode(list(plain.answer.tokens), skip_special_tokens=True)
    console.print(Text(answer), "")
    table = Table("method", "tokens/s", "speed-up", "tau", "text", box=None, pad_edge=False)
    for x in measurements:
        statistics = x.answer.statistics
        assert statistics is not None, "every method of the demo runs on the engine"
        table.add_row(
            x.method,
            f"{1 / x.seconds_per_token:.1f}",
            f"{plain.seconds_per_token / x.seconds_per_token:.2f}x",
            f"{statistics.acceptance_length:.2f}",
            "the same" if x.answer.tokens == plain.answer.tokens else "DIFFERENT",
        )
    console.print(table, "")


def _show_round(console: Console, model: Model, args: Arguments, prompt: Prompt, settings: GenerationSettings) -> None:
    """Draw the draft tree of the round that accepted most."""
    from paceline.drafter_loading import load_drafter
    from paceline.drafters.traced import TracedDrafter
    from paceline.embedded import embedded_drafter
    from paceline.engine import Engine
    from paceline.loading import make_parts
    from paceline.tree import render_tree

    drafter = load_drafter(args.drafter or str(embedded_drafter()), model.target, tokenizer=model.tokenizer)
    assert drafter is not None
    traced = TracedDrafter(drafter)
    engine = Engine(make_parts(model.target, traced, None, args.tree_budget), max_batch=1)
    request = engine.submit(model.encode(prompt.text), settings)
    engine.run()
    tokens = [*request.prompt, *request.tokens]
    if not traced.rounds:
        return
    best = max(traced.rounds, key=lambda r: len(r.accepted(tokens)))
    path = best.accepted(tokens)
    console.print(Text(f"One round: {best.tree.num_nodes} nodes verified in one pass, {len(path)} accepted", "bold"))

    def label(token: int) -> str:
        return repr(model.tokenizer.decode([token]))

    for line in render_tree(best.tree, label, path, label(tokens[best.num_tokens - 1])):
        console.print(Text(line, style="green" if line.endswith("✓") else ""))
    console.print()


def _conclude(console: Console, shown: list[Measurement]) -> None:
    plain = {x.prompt: x.answer.tokens for x in shown if x.method == "plain"}
    different = [x for x in shown if x.answer.tokens != plain[x.prompt]]
    if different:
        raise PacelineError(
            f"method {different[0].method} gave another text than plain decoding on prompt {different[0].prompt.id!r}; "
            "this is a fault of paceline, please report it."
        )
    console.print(f"All {len(shown)} texts are the same as plain decoding's, token for token.")
