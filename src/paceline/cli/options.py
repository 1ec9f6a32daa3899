"""Flags that several subcommands share, and what they are turned into."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from paceline.adaptation.settings import AdaptationSettings
from paceline.errors import InputError
from paceline.policies.spelling import check_spelling
from paceline.types import GenerationSettings, Grammar

if TYPE_CHECKING:
    from paceline.text_model import Model

Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Count = Annotated[int | None, tyro.conf.arg(metavar="INT")]
Thinking = Annotated[Literal["on", "off"] | None, tyro.conf.arg(metavar="{on,off}")]


def as_switch(thinking: Literal["on", "off"] | None) -> bool | None:
    """The flag as `paceline.load` takes it."""
    return None if thinking is None else thinking == "on"


@dataclass(frozen=True)
class ModelOptions:
    """Which target answers and how it is drafted for."""

    target: Name = None
    """Hugging Face name or folder of the target; the embedded SmolLM2-135M-Instruct where not given."""
    drafter: Name = None
    """Folder or hub name of a drafter (a draft network, or a smaller language model with the target's tokenizer),
    `prompt_lookup`, or `none`; `dflash`, `specblock`, `eagle3` and `heads` are those that come with the embedded
    target; where not given, `dflash` for the embedded target and prompt lookup for any other."""
    tree: Literal["chain", "top_k", "best_first"] = "best_first"
    """How the draft tree grows."""
    lookup: bool = True
    """Merge what followed the same words before into the trees that a draft network grows by best_first."""
    exact: bool = False
    """Refuse a target that rounds a token's logits differently when other tokens are in the pass (in bfloat16, tokens
    that nearly tie could then swap)."""
    thinking: Thinking = None
    """Thinking mode, for targets whose chat template has one; as the template does by itself where not given."""
    tree_budget: Count = None
    """Nodes of the draft tree, root excluded; the drafter's own where not given."""
    block_size: Count = None
    """Rows of the drafter's block, anchor included; the drafter's own where not given."""
    siblings: Annotated[tuple[int, int, int, int] | None, tyro.conf.arg(metavar="N N N N")] = None
    """Tokens that a slot of a SpecBlock drafter tries where the rank head expects the target's at rank 1, 2-4, 5-10 and
    beyond; 1 4 10 0 where not given."""
    starts: Count = None
    """Nodes from which the later blocks of a SpecBlock drafter start."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="POLICY")] = None
    """What decides how much to draft: `fixed:SIZE`, `fixed:SIZE:NODES`, `blockpilot`, `cost_aware` or `joint` (the last
    two measure this machine once, for up to a minute; `cost_aware:calibrated` corrects the drafter's probabilities by
    what was accepted); `blockpilot:FOLDER` and `joint:FOLDER` use what `paceline train policy` made; --block-size, or
    the drafter's own, where not given."""
    adapt: bool = False
    """Let the drafter learn from what it serves, as far as that pays."""
    adapt_queries: Count = None
    """Queries that --adapt may expect, for which learning must pay; as long a stream again as it has seen where not
    given."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, tyro.conf.arg(metavar="{float32,bfloat16,float16}")
    ] = None
    """Type of the weights; where not given, float32 on a CPU and the checkpoint's own elsewhere."""
    device: Annotated[str | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Where to compute, such as cuda:0, mps or cpu; the best one present where not given."""
    threads: Count = None
    """CPU threads; PyTorch's choice where not given."""

    def load_arguments(self) -> dict[str, Any]:
        """The arguments of `paceline.load`.

        Raises:
            InputError: a length of the stream where nothing learns from it.
        """
        arguments = asdict(self)
        arguments["thinking"] = as_switch(self.thinking)
        expected = arguments.pop("adapt_queries")
        if expected is not None:
            if not self.adapt:
                raise InputError("--adapt-queries came without --adapt, which learns from them; add it.")
            arguments["adapt"] = AdaptationSettings(expected_queries=expected)
        return arguments


@dataclass(frozen=True)
class GrammarOptions:
    """What an answer must look like."""

    json_schema: Annotated[str | None, tyro.conf.arg(metavar="SCHEMA")] = None
    """Hold the answer to this JSON schema, given as text or as the path of a file."""
    regex: Annotated[str | None, tyro.conf.arg(metavar="PATTERN")] = None
    """Hold the answer to this regular expression."""
    ebnf: Annotated[str | None, tyro.conf.arg(metavar="GRAMMAR")] = None
    """Hold the answer to this EBNF grammar, given as text or as the path of a file."""

    def grammar(self) -> Grammar | None:
        """The one that was given, if any."""
        given = {
            "json_schema": self.json_schema and _source(self.json_schema, "{"),
            "regex": self.regex,
            "ebnf": self.ebnf and _source(self.ebnf, "::="),
        }
        kinds = [kind for kind, source in given.items() if source is not None]
        if len(kinds) > 1:
            raise InputError(f"{' and '.join(kinds)} came, but an answer has one grammar; leave all but one out.")
        return Grammar(kinds[0], given[kinds[0]]) if kinds else None  # type: ignore[arg-type]  # one of the three


@dataclass(frozen=True)
class SamplingOptions(GrammarOptions):
    """What one request asks for."""

    max_tokens: int = GenerationSettings.max_tokens
    """Longest answer, in tokens."""
    temperature: float = GenerationSettings.temperature
    """Sampling temperature; 0 is greedy."""
    top_k: int = GenerationSettings.top_k
    """Sample among this many most likely tokens; 0 is off."""
    top_p: float = GenerationSettings.top_p
    """Sample among the most likely tokens that hold this much probability; 1 is off."""
    min_p: float = GenerationSettings.min_p
    """Drop tokens less likely than this fraction of the likeliest; 0 is off."""
    repetition_penalty: float = GenerationSettings.repetition_penalty
    """Make every token of prompt and answer less likely by this factor; 1 is off."""
    presence_penalty: float = GenerationSettings.presence_penalty
    """Taken from the logit of every token that the answer has already; 0 is off."""
    frequency_penalty: float = GenerationSettings.frequency_penalty
    """Taken from a token's logit for each time that the answer has it already; 0 is off."""
    logit_bias: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="ID=BIAS")] = ()
    """Add BIAS to the logit of token ID; may be given several times."""
    seed: int = GenerationSettings.seed
    """Seed of the sampling noise: same seed, same text, drafted or not."""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = GenerationSettings.stop
    """End the answer before this string; may be given several times."""
    stop_token_ids: tuple[int, ...] = GenerationSettings.stop_token_ids
    """End the answer at any of these token ids."""
    min_tokens: int = GenerationSettings.min_tokens
    """Do not end the answer before it has this many tokens."""
    ignore_eos: bool = GenerationSettings.ignore_eos
    """Do not end the answer at an end-of-text token."""
    logprobs: Count = GenerationSettings.logprobs
    """Log-probability of every token, and of this many alternatives."""
    draft: bool = GenerationSettings.draft
    """Draft at all; the text is the same without."""

    def settings(self, raw: bool = False) -> GenerationSettings:
        """The request's settings, validated."""
        return GenerationSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_biases(self.logit_bias),
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            grammar=self.grammar(),
            draft=self.draft,
            raw=raw,
        )


def _source(text: str, mark: str) -> str:
    """The text, or that of the file which it names; `mark` tells a text from the name of a file that is not there."""
    if mark not in text and not os.path.isfile(text):
        raise InputError(
            f"{text[:80]!r} is neither a file nor a grammar, in which {mark!r} would occur; give one of both."
        )
    try:
        return Path(text).read_text(encoding="utf-8") if os.path.isfile(text) else text
    except (OSError, ValueError) as error:
        raise InputError(f"the grammar {text[:80]!r} cannot be read: {error}.") from error


def _biases(texts: tuple[str, ...]) -> dict[int, float]:
    biases = dict(map(_bias, texts))
    if len(biases) < len(texts):
        raise InputError("logit_bias names a token twice; name each token once.")
    return biases


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise InputError(f"logit_bias is {text!r}, but must be a token id and a number, such as 198=-5.") from None


def check_drafting(sampling: SamplingOptions, options: ModelOptions) -> None:
    """Refuse what says how to draft beside --no-draft.

    Raises:
        InputError: names the flag.
    """
    given = {
        "--block-size": options.block_size is not None,
        "--tree-budget": options.tree_budget is not None,
        "--policy": options.policy is not None,
        "--tree": options.tree != ModelOptions.tree,
        "--no-lookup": not options.lookup,
        "--siblings": options.siblings is not None,
        "--starts": options.starts is not None,
        "--adapt": options.adapt,
    }
    flag = next((flag for flag, came in given.items() if came), None)
    if not sampling.draft and flag is not None:
        raise InputError(f"{flag} and --no-draft came, but nothing is drafted then; leave one of them out.")


def refuse_adapting(options: ModelOptions, why: str) -> None:
    """Refuse what lets a drafter learn, where it cannot or may not.

    Raises:
        InputError: says why.
    """
    if options.adapt:
        raise InputError(f"--adapt came, but {why}; leave it out.")


def load_model(options: ModelOptions, console: Console, learning: AdaptationSettings | None = None) -> Model:
    """The model that the flags name; `console` shows what takes time. `learning` is how a drafter learns that does."""
    GenerationSettings(block_size=options.block_size, tree_budget=options.tree_budget)  # refused before the loading
    arguments = options.load_arguments()
    if options.adapt and learning is not None:
        arguments["adapt"] = learning
    if options.policy is not None:
        check_spelling(options.policy)
    with console.status("loading") if console.is_terminal else nullcontext() as status:
        from transformers.utils import logging

        from paceline.embedded import embedded_target
        from paceline.loading import load

        logging.disable_progress_bar()
        if options.target is None:
            embedded_target(report=status.update if status else console.print)
        return load(**arguments)
