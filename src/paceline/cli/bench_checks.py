"""What a bench refuses before it loads anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.cli.bench_arguments import Arguments
from paceline.errors import InputError
from paceline.policies.spelling import check_spelling
from paceline.prompts import Prompt
from paceline.result_files import check_writable
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.bench.config import BenchConfig

#: Methods that are Hugging Face's own.
_REFERENCES = ("hf", "hf-dflash")
_OF_SAMPLING = ("seed", "top_k", "top_p", "min_p")
"""Settings without a meaning where the likeliest token is taken."""


def check_arguments(args: Arguments, prompts: Sequence[Prompt]) -> None:
    """Refuse what needs no models to be refused.

    Raises:
        InputError: the first thing that cannot be.
    """
    check_writable(args.json, "--json")
    check_writable(args.results, "--results")
    if args.results is not None and args.results.resolve() in {path.resolve() for path in args.prompts}:
        raise InputError(f"--results {str(args.results)!r} is the file of prompts too; name another.")
    read_or_written = [path.resolve() for path in (*args.prompts, args.results) if path is not None]
    if args.json is not None and args.json.resolve() in read_or_written:
        raise InputError(
            f"--json {str(args.json)!r} is also a file of --prompts or --results, which it would replace; name another."
        )
    if not args.methods:
        raise InputError("--methods names no method; name at least one.")
    if len(set(args.methods)) < len(args.methods):
        raise InputError("--methods names a method twice; name each method once.")
    for policy in args.policies:
        check_spelling(policy)
    if len(set(args.policies)) < len(args.policies):
        raise InputError("--policies names a policy twice; name each policy once.")
    for name, least in (("repeats", 1), ("turns", 1), ("workers", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"{name} is {value}, but must be at least {least}.")
    if not 0.0 <= args.gpus < float("inf"):
        raise InputError(f"gpus is {args.gpus}, but must be at least 0.")
    if args.ray is None and (args.workers > 1 or args.gpus > 0.0):
        raise InputError(
            "--workers and --gpus are of a Ray cluster; add --ray, or launch several processes (docs/benchmarks.md)."
        )
    if len({(prompt.set_name, prompt.id) for prompt in prompts}) < len(prompts):
        raise InputError("two prompts have the same set and id, so that nobody could tell them apart; rename one.")
    if args.judge:
        from paceline.bench.judging.judge import check_judging

        check_judging(args.judge, prompts)


def check_methods(args: Arguments, config: BenchConfig) -> None:
    """Refuse methods that cannot do what is asked of them.

    Raises:
        InputError: the first thing that cannot be.
    """
    for settings, _ in config.requests():
        _check_reference(args, settings)
    from paceline.bench.methods import GROWING, LEARNING, sizes_used

    learning = [name for name in args.methods if name.endswith(LEARNING)]
    if learning and args.repeats > 1:
        raise InputError(
            f"repeats is {args.repeats}, but a method that learns knows a prompt the second time; use --repeats 1."
        )
    if learning and (args.results is not None or args.ray is not None or config.sweeps):
        raise InputError(
            f"method {learning[0]} learns from all that it has served, which --results, --ray and --sweep would take "
            "apart; leave it out, or keep its figures with --json."
        )
    if args.tree_budget is not None and not GROWING & set(args.methods):
        raise InputError(f"tree_budget is {args.tree_budget}, but no method grows trees; add ddtree, for one.")
    if args.policies and not GROWING & set(args.methods):
        raise InputError("--policies came, but no method whose trees they could size; add mixture, for one.")
    for sweep in config.sweeps:
        if getattr(args, sweep.name, None) is not None:
            raise InputError(f"{sweep.name} came and is swept; leave one of both out.")
        if sweep.name in ("block_size", "tree_budget"):
            if not any(sweep.name in sizes_used(name) for name in args.methods):
                raise InputError(f"--sweep {sweep.name} came, but no method has one; add ddtree, for one.")
        elif sweep.name in _OF_SAMPLING and not any(asked.temperature > 0.0 for asked, _ in config.requests()):
            raise InputError(
                f"--sweep {sweep.name} came, but greedy answers do not depend on it; add --temperature above 0."
            )
        elif len(sweep.values) > 1 and args.policies:
            raise InputError(f"--sweep {sweep.name} and --policies came; compare policies at one {sweep.name} a run.")


def _check_reference(args: Arguments, settings: GenerationSettings) -> None:
    """Hugging Face's own generate is compared where it decodes by the same rules."""
    for name in _REFERENCES:
        if name not in args.methods:
            continue
        if settings.temperature > 0.0:
            raise InputError(
                f"method {name} compares greedy text, but the temperature is {settings.temperature}; leave {name} out."
            )
        if settings.grammar is not None:
            raise InputError(f"method {name} knows no grammar, but a {settings.grammar.kind} came; leave {name} out.")
        if settings.edits_logits:
            raise InputError(
                f"method {name} knows no penalties and no min_tokens, but they are swept; leave {name} out."
            )
