"""`paceline verify`: the proof that drafting changes nothing but speed, on this target and drafter."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from paceline.adaptation.settings import AdaptationSettings
from paceline.cli.answer_summary import learned
from paceline.cli.options import Count, ModelOptions, load_model
from paceline.errors import InputError, LawBrokenError
from paceline.prompts import check_length, read_prompts
from paceline.result_files import check_writable, write_json
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.drafters.base import Drafter
    from paceline.proof.subject import Subject
    from paceline.text_model import Model


#: Tokens of the context that the proof's own trees take.
ROOM = 16


@dataclass(frozen=True)
class Arguments:
    """Prove on this target and drafter that drafting changes nothing but speed; the exit code says whether it holds."""

    prompts: tuple[Path, ...] = ()
    """JSON Lines files of prompts; a set of ours where not given."""
    limit: Count = 4
    """Use at most this many prompts of each file."""
    max_tokens: int = 32
    """Longest answer, in tokens."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write what was found to this file."""
    model: Annotated[ModelOptions, tyro.conf.arg(name="")] = field(default_factory=ModelOptions)


def run(args: Arguments) -> None:
    """Check every law and print a line for each.

    Raises:
        LawBrokenError: a law does not hold.
    """
    console = Console(highlight=False)
    check_writable(args.json, "--json")
    GenerationSettings(max_tokens=args.max_tokens)  # refuses what no request may ask for
    prompts = read_prompts(args.prompts, args.limit)
    if args.model.drafter == "none":
        raise InputError("drafter is 'none', but there is nothing to prove without one; name a drafter.")
    if len(prompts) < 2:
        raise InputError(
            f"{len(prompts)} prompt came, but at least 2 are needed to prove that neighbours change nothing."
        )
    model = load_model(args.model, console, AdaptationSettings(forced=True, whole_steps=1))
    encoded = [model.encode(prompt.text) for prompt in prompts]
    for prompt, tokens in zip(prompts, encoded, strict=True):
        check_length(prompt, len(tokens) + max(args.max_tokens, ROOM), model.target.info.max_context)
        if len(tokens) < 2:
            raise InputError(f"prompt {prompt.id!r} of {prompt.set_name} has one token, but at least 2 are needed.")
    subject = _subject(args, model, encoded)
    rows = _prove(subject, console)
    if model.adapter is not None:
        console.print(learned(model.adapter.updates))
        if not model.adapter.updates:
            raise InputError("nothing was learned on the way, so nothing is proven of it; give more prompts or tokens.")
    if args.json is not None:
        from paceline.provenance import provenance

        settings = asdict(args) | {"prompts": [str(path) for path in args.prompts], "json": str(args.json)}
        settings["drafted"] = list(subject.drafted)
        facts = provenance(model.target.info, model.tokenizer, sys.argv, model.thinking)
        write_json(args.json, {"provenance": facts, "settings": settings, "laws": rows})
    broken = [row for row in rows if not row["holds"]]
    if broken:
        raise LawBrokenError(
            f"the law {broken[0]['law']!r} is broken ({broken[0]['sentence']}): {broken[0]['measured']}; "
            "drafting is not lossless here, please report it."
        )
    console.print(f"All {len(rows)} laws hold for {', '.join(subject.drafted)} on {model.target.info.name}.")


def _subject(args: Arguments, model: Model, prompts: list[list[int]]) -> Subject:
    """The model's own way of drafting, and the ones it is made of."""
    from paceline.drafters.dflash import DFlashDrafter
    from paceline.drafters.mixture import MixtureDrafter
    from paceline.loading import make_parts
    from paceline.proof.subject import Subject
    from paceline.tree import GROWTHS

    drafter = model.drafter
    assert drafter is not None, "refused before"
    drafters: dict[str, Drafter] = {}
    network = drafter.first if isinstance(drafter, MixtureDrafter) else drafter
    if isinstance(network, DFlashDrafter):
        names = dict.fromkeys(("chain", "best_first", args.model.tree))
        drafters = {name: DFlashDrafter(network.network, GROWTHS[name]) for name in names}
    if drafter is not network or not drafters:
        drafters[drafter.name] = drafter
    asked = [args.model.policy] if args.model.policy is not None else []
    asked += ["adapting"] if args.model.adapt else []
    policies = {", ".join([drafter.name, *asked]): model.parts} if asked else {}
    drafted = {
        name: make_parts(model.target, part, args.model.block_size, args.model.tree_budget)
        for name, part in drafters.items()
    }
    return Subject(model.target, drafted | policies, prompts, args.max_tokens)


def _prove(subject: Subject, console: Console) -> list[dict[str, Any]]:
    """A line for every law as soon as it is checked."""
    from paceline.proof.laws import LAWS

    rows: list[dict[str, Any]] = []
    for law in LAWS:
        started = perf_counter()
        with console.status(law.sentence) if console.is_terminal else nullcontext():
            finding = law.check(subject)
        seconds = perf_counter() - started
        verdict = "holds " if finding.holds else "BROKEN"
        console.print(f"{verdict} {law.name:<10} {law.sentence}: {finding.measured} ({seconds:.0f} s)", soft_wrap=True)
        rows.append({"law": law.name, "sentence": law.sentence, "seconds": seconds, **asdict(finding)})
    return rows
