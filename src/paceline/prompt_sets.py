"""The field's prompt sets by name, fetched from the hub where it is reached.

Each is spoken as the DFlash evaluation (arXiv 2602.06036) speaks it, instructions included, or, where that lacks it, as
the EAGLE and Spec-Bench evaluations do: acceptance depends on the wording. A local file of `{"turns": [...]}` takes the
place of any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from paceline.errors import InputError

Row = Mapping[str, Any]

_REASON = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Reference:
    """What an answer can be judged by: the right `answer`, or the Python `tests` that a program must pass, of which
    `stub` is the beginning that was given."""

    answer: str = ""
    tests: str = ""
    stub: str = ""


@dataclass(frozen=True)
class PromptSet:
    """Where a set lies on the hub, and how its rows become the user's turns and what the answer is judged by; `files`
    are those of a set that is plain JSON."""

    path: str
    split: str
    turns: Callable[[Row], list[str]]
    config: str | None = None
    files: tuple[str, ...] = ()
    reference: Callable[[Row], Reference] | None = None


def reasoned_question(row: Row) -> list[str]:
    """GSM8K: `question`, `answer`."""
    return [f"{row['question']}\n{_REASON}"]


def reasoned_problem(row: Row) -> list[str]:
    """MATH-500 and AIME: `problem`, `answer`."""
    return [f"{row['problem']}\n{_REASON}"]


def humaneval(row: Row) -> list[str]:
    """HumanEval: `prompt` (a function's head), `test`, `entry_point`."""
    asked = "Write a solution to the following problem and make sure that it passes the tests:"
    return [f"{asked}\n```python\n{row['prompt']}\n```"]


def mbpp(row: Row) -> list[str]:
    """MBPP, sanitized: `prompt`, `test_list`."""
    return [str(row["prompt"])]


def livecodebench(row: Row) -> list[str]:
    """LiveCodeBench: `question_content`, `starter_code` (at times empty)."""
    role = (
        "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
        "correct Python program that matches the specification and passes all tests. You will NOT return anything "
        "except for the program"
    )
    starter = row.get("starter_code")
    how = "Use the following code structure:" if starter else "Write your code in the following format:"
    code = starter or "# YOUR CODE HERE"
    answer = "### Answer: (use the provided format with backticks)"
    parts = [role, f"### Question:\n{row['question_content']}", f"### Format: {how}\n```python\n{code}\n```", answer]
    return ["\n\n".join(parts)]


def swe_bench(row: Row) -> list[str]:
    """SWE-bench Lite: `problem_statement`."""
    return [f"Problem Statement:\n{row['problem_statement']}\nPlease fix the issue described above."]


def mt_bench(row: Row) -> list[str]:
    """MT-Bench: `prompt`, the two turns of the user."""
    return list(row["prompt"])


def alpaca(row: Row) -> list[str]:
    """Alpaca: `instruction`, `input` (at times empty)."""
    return [f"{row['instruction']}\n\nInput:\n{row['input']}" if row.get("input") else str(row["instruction"])]


def natural_questions(row: Row) -> list[str]:
    """Natural Questions, open: `question`, without its mark."""
    question = str(row["question"])
    return [f"{question[:1].upper()}{question[1:]}?"]


def wmt(row: Row) -> list[str]:
    """WMT23, German to English: {"de-en": {"de", "en"}}."""
    return [f"Translate German to English: {row['de-en']['de']}"]


def cnn_dailymail(row: Row) -> list[str]:
    """CNN/DailyMail: `article`, `highlights`."""
    return [f"Summarize: {row['article']}"]


def spec_bench(row: Row) -> list[str]:
    """Spec-Bench: `turns`."""
    return list(row["turns"])


def share_gpt(row: Row) -> list[str]:
    """ShareGPT: `conversations` of {"from", "value"}; what people wrote."""
    return [said["value"] for said in row["conversations"] if said["from"] in ("human", "user")]


def wsc(row: Row) -> list[str]:
    """Winograd schemas of SuperGLUE: `text`, `span1_text`, `span2_text`."""
    return [f'{row["text"]} Does "{row["span2_text"]}" refer to "{row["span1_text"]}"?']


def copa(row: Row) -> list[str]:
    """COPA of SuperGLUE: `premise`, `choice1`, `choice2`."""
    return [f"{row['premise']} A: {row['choice1']} B: {row['choice2']}"]


def final_number(row: Row) -> Reference:
    """GSM8K: what follows the marks at the end of `answer`."""
    return Reference(str(row["answer"]).rpartition("####")[2].strip().replace(",", ""))


def final_answer(row: Row) -> Reference:
    """MATH-500 and AIME: `answer`."""
    return Reference(str(row["answer"]))


def humaneval_tests(row: Row) -> Reference:
    """HumanEval: `test` defines `check`, which takes the function."""
    return Reference(tests=f"{row['test']}\ncheck({row['entry_point']})\n", stub=str(row["prompt"]))


def mbpp_tests(row: Row) -> Reference:
    """MBPP: imports and assertions."""
    return Reference(tests="\n".join([*row.get("test_imports", ()), *row["test_list"]]) + "\n")


_LIVE = "livecodebench/code_generation_lite"
_LIVE_FILES = tuple(f"hf://datasets/{_LIVE}/test{number}.jsonl" for number in ("", "2", "3", "4", "5", "6"))
_SHARE = "anon8231489123/ShareGPT_Vicuna_unfiltered"
_SHARE_FILES = (f"hf://datasets/{_SHARE}/ShareGPT_V3_unfiltered_cleaned_split.json",)

PROMPT_SETS: Mapping[str, PromptSet] = MappingProxyType(
    {
        "gsm8k": PromptSet("openai/gsm8k", "test", reasoned_question, "main", reference=final_number),
        "math500": PromptSet("HuggingFaceH4/MATH-500", "test", reasoned_problem, reference=final_answer),
        "aime24": PromptSet("HuggingFaceH4/aime_2024", "train", reasoned_problem, reference=final_answer),
        "aime25": PromptSet("MathArena/aime_2025", "train", reasoned_problem, reference=final_answer),
        "humaneval": PromptSet("openai/openai_humaneval", "test", humaneval, reference=humaneval_tests),
        "mbpp": PromptSet("google-research-datasets/mbpp", "test", mbpp, "sanitized", reference=mbpp_tests),
        "livecodebench": PromptSet(_LIVE, "train", livecodebench, files=_LIVE_FILES),
        "swe-bench-lite": PromptSet("princeton-nlp/SWE-bench_Lite", "test", swe_bench),
        "mt-bench": PromptSet("HuggingFaceH4/mt_bench_prompts", "train", mt_bench),
        "alpaca": PromptSet("tatsu-lab/alpaca", "train", alpaca),
        "nq": PromptSet("google-research-datasets/nq_open", "validation", natural_questions),
        "wmt23": PromptSet("haoranxu/WMT23-Test", "test", wmt, "de-en"),
        "cnn_dm": PromptSet("abisee/cnn_dailymail", "test", cnn_dailymail, "3.0.0"),
        "spec-bench": PromptSet("", "", spec_bench),
        "sharegpt": PromptSet(_SHARE, "train", share_gpt, files=_SHARE_FILES),
        "wsc": PromptSet("aps/super_glue", "train", wsc, "wsc"),
        "copa": PromptSet("aps/super_glue", "train", copa, "copa"),
    }
)


def fetch(
    name: str, limit: int | None = None, load: Callable[..., Iterable[Row]] | None = None
) -> list[tuple[list[str], Reference | None]]:
    """The user's turns of the first `limit` rows of a set, and what the answer is judged by; `load` stands in for
    `datasets.load_dataset`.

    Raises:
        InputError: the set cannot be had here, or its rows are not what they were.
    """
    chosen = PROMPT_SETS[name]
    instead = 'give a JSON Lines file of {"turns": ["a user turn", ...]} in its place'
    if not chosen.path:
        raise InputError(f"the prompt set {name!r} is on no hub; {instead} (its authors' question.jsonl is one).")
    try:
        rows = (load or _loader())(
            *(("json",) if chosen.files else (chosen.path, chosen.config)),
            split=chosen.split,
            streaming=True,
            **({"data_files": list(chosen.files)} if chosen.files else {}),
        )
        found = [
            (chosen.turns(row), None if chosen.reference is None else chosen.reference(row))
            for row in islice(iter(rows), limit)
        ]
    except (KeyError, TypeError) as error:
        raise InputError(f"the prompt set {name!r} has other rows than expected ({error!r}); {instead}.") from error
    except InputError:
        raise
    except Exception as error:  # the hub's client raises many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"the prompt set {name!r} is no file here and cannot be fetched from the hub ({reason}); {instead}."
        ) from error
    return [(turns, reference) for turns, reference in found if turns and all(turns)]


def _loader() -> Callable[..., Iterable[Row]]:
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise InputError(
            "prompt sets by name need the package 'datasets', which is not installed; pip install 'paceline[data]', or "
            'give JSON Lines files of {"turns": ["a user turn", ...]}.'
        ) from error
    loader: Callable[..., Iterable[Row]] = load_dataset
    return loader
