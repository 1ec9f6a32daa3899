"""Results files of benches that never ran, with numbers that can be worked out by hand."""

from __future__ import annotations

from paceline.bench.measurement import Measurement
from paceline.bench.method import Answer
from paceline.bench.results import MethodFacts, Results, append, begin
from paceline.metrics import STAGES
from paceline.near_ties import Divergence
from paceline.prompts import Prompt
from paceline.types import Statistics

FACTS = {
    "target": "a/target",
    "target_digest": "a",
    "dtype": "float32",
    "chat_template_sha256": "t",
    "thinking_mode": "none in the template",
    "accelerator": "none",
    "threads": 2,
    "processor": "a processor",
    "cpu_capability": "AVX2",
    "torch": "2",
    "transformers": "5",
    "batch": 1,
    "max_tokens": 9,
}
SETS = ("gsm8k", "humaneval")


def method(name, seconds, accepted=None, family="", policy="", sizes=None, **settings):
    """(facts, seconds of 8 tokens, drafted tokens that the rounds accept)."""
    return MethodFacts(name, settings, family or name, policy, sizes or {}), seconds, accepted


PLAIN, HF = method("plain", 8.0, 0), method("hf", 10.0)


def sized(block, nodes, seconds, accepted):
    name, sizes = f"ddtree block_size={block} tree_budget={nodes}", {"block_size": block, "tree_budget": nodes}
    facts = MethodFacts(name, {"policy": "fixed", **sizes}, "ddtree", "", sizes)
    return facts, seconds, accepted


def statistics(accepted):
    """8 tokens: 1 + rounds + accepted."""
    rounds = 7 - accepted
    by_position = [min(accepted, rounds), max(accepted - rounds, 0)] if accepted else []
    return Statistics(
        prompt_tokens=3,
        tokens=8,
        rounds=rounds,
        drafted=4 * rounds if accepted else 0,
        accepted=accepted,
        accepted_by_position=[count for count in by_position if count],
        stage_ms={stage: 2.0 * rounds for stage in STAGES},
        drafter_calls=rounds,
        decode_s=1.0,
    )


def write_run(
    path,
    methods,
    temperatures=(0.0,),
    num_prompts=4,
    facts=FACTS,
    judged=False,
    apart=(),
    wrong=(),
    prompts=None,
    slow=(),
    seeds=(None,),
):
    """A file with these methods on prompts of two sets in turn; prompt i takes i + 1 times the seconds.

    `apart` are (method, number of the prompt) whose text parts at a near-tie; `judged` answers of the first two prompts
    are right, but for methods that are `wrong`; those that are `slow` take ten times as long.
    """
    numbers = range(num_prompts) if prompts is None else prompts
    settings = {"prompts": [[SETS[i % 2], str(i), 1] for i in numbers]}
    head = Results(settings, dict(facts), [m for m, _, _ in methods])
    begin(path, head)
    for place, number in enumerate(numbers):
        prompt = Prompt(SETS[number % 2], str(number), "")
        done = [
            Measurement(
                m.name,
                prompt,
                3,
                Answer(tuple(range(8)), 1.0, None if accepted is None else statistics(accepted)),
                (seconds * (number + 1) * (10.0 if (m.name, number) in slow else 1.0),),
                asked={"temperature": temperature, "max_tokens": 8.0} | ({} if seed is None else {"seed": seed}),
                divergence=Divergence(1, 0.0, 0.1) if (m.name, number) in apart else None,
                is_right=number < 2 and m.name not in wrong if judged else None,
                limit=8,
            )
            for temperature in temperatures
            for seed in seeds
            for m, seconds, accepted in methods
        ]
        append(path, place, done)
    return path
