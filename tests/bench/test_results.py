"""Results files: appended to line by line, gone on with after a kill, refused where something else is."""

import json

import pytest

from paceline.bench.config import BenchConfig
from paceline.bench.measurement import Measurement
from paceline.bench.method import Answer
from paceline.bench.results import MethodFacts, asked_apart, read_results
from paceline.bench.work import measure_missing
from paceline.errors import CheckpointError, InputError
from paceline.prompts import Prompt
from paceline.types import GenerationSettings

PROMPTS = tuple(Prompt("made", str(i), "words") for i in range(5))
CONFIG = BenchConfig(("plain", "ddtree"), PROMPTS, GenerationSettings(max_tokens=4))
FACTS = {"target_digest": "a", "dtype": "float32", "chat_template_sha256": "t", "thinking_mode": "none",
         "accelerator": "none", "threads": 2, "processor": "p", "torch": "2", "transformers": "5"}  # fmt: skip
METHODS = [MethodFacts("plain", {}, "plain"), MethodFacts("ddtree", {"drafter_digest": "d"}, "ddtree")]


class StoppedError(Exception):
    pass


def measuring(asked, stop_at=None, facts=FACTS, methods=METHODS):
    def map_prompts(numbered):
        for number, prompt in numbered:
            if number == stop_at:
                raise StoppedError
            asked.append(number)
            done = [
                Measurement(m.name, prompt, 3, Answer((number, 1), 2.0, None), (2.0,), asked={"temperature": 0.0})
                for m in METHODS
            ]
            yield (number, prompt), (facts, methods, done)

    return map_prompts


def silent(done, total):
    pass


def test_a_killed_bench_goes_on_with_the_prompts_that_have_no_line(tmp_path):
    path, asked, told = tmp_path / "out.jsonl", [], []
    with pytest.raises(StoppedError):
        measure_missing(CONFIG, path, measuring(asked, stop_at=3), silent)
    with path.open("a") as file:
        file.write('{"number": 3, "answers": [{"meth')  # what a kill leaves of a line
    results = measure_missing(CONFIG, path, measuring(asked), lambda *progress: told.append(progress))
    assert asked == [0, 1, 2, 3, 4]
    assert told == [(3, 5), (4, 5), (5, 5)]
    again = read_results(path)
    for found in (results, again):
        assert [x.answer.tokens[0] for x in found.measurements] == [i for i in range(5) for _ in METHODS]
        assert found.methods == METHODS and found.provenance == FACTS
    assert measure_missing(CONFIG, path, measuring(asked), silent).measurements == again.measurements
    assert asked == [0, 1, 2, 3, 4]


def test_without_a_file_everything_is_measured():
    assert len(measure_missing(CONFIG, None, measuring([]), silent).measurements) == 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"asking": GenerationSettings(max_tokens=5)}, "max_tokens = 4 but it is 5"),
        ({"methods": ("plain",)}, "methods"),
        ({"prompts": PROMPTS[:2]}, "prompts"),
        ({"block_size": 4}, "block_size = None but it is 4"),
    ],
)
def test_a_file_of_another_run_is_refused_before_anything_is_loaded(tmp_path, changed, message):
    path = tmp_path / "out.jsonl"
    measure_missing(CONFIG, path, measuring([]), silent)
    other = BenchConfig(**{**vars(CONFIG), **changed})
    with pytest.raises(InputError, match=message):
        measure_missing(other, path, lambda numbered: pytest.fail("loaded"), silent)


@pytest.mark.parametrize("name", ["target_digest", "dtype", "chat_template_sha256", "threads", "processor"])
def test_a_file_begun_elsewhere_is_not_gone_on_with(tmp_path, name):
    path, asked = tmp_path / "out.jsonl", []
    with pytest.raises(StoppedError):
        measure_missing(CONFIG, path, measuring(asked, stop_at=2), silent)
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"begun with {name}"):
        measure_missing(CONFIG, path, measuring(asked, facts={**FACTS, name: "other"}), silent)
    assert path.read_bytes() == before


def test_a_drafter_trained_on_meanwhile_is_not_mixed_with_what_it_was(tmp_path):
    path = tmp_path / "out.jsonl"
    with pytest.raises(StoppedError):
        measure_missing(CONFIG, path, measuring([], stop_at=2), silent)
    other = [METHODS[0], MethodFacts("ddtree", {"drafter_digest": "e"}, "ddtree")]
    with pytest.raises(InputError, match="drafter_digest of ddtree = d but it is e now"):
        measure_missing(CONFIG, path, measuring([], methods=other), silent)


def test_prompts_whose_words_changed_are_other_prompts(tmp_path):
    path = tmp_path / "out.jsonl"
    measure_missing(CONFIG, path, measuring([]), silent)
    edited = (*PROMPTS[:4], Prompt("made", "4", "other words"))
    with pytest.raises(InputError, match=r"begun with .*prompts") as caught:
        measure_missing(BenchConfig(**{**vars(CONFIG), "prompts": edited}), path, measuring([]), silent)
    assert len(str(caught.value)) < 600


def test_two_benches_do_not_write_to_one_file(tmp_path):
    path = tmp_path / "out.jsonl"

    def meanwhile(numbered):
        with pytest.raises(InputError, match="another bench is writing"):
            measure_missing(CONFIG, path, measuring([]), silent)
        yield from measuring([])(numbered)

    assert len(measure_missing(CONFIG, path, meanwhile, silent).measurements) == 10


def test_workers_on_unlike_machines_are_refused_without_a_file_too():
    def unlike(numbered):
        for number, prompt in numbered:
            yield from measuring([], facts={**FACTS, "processor": f"p{number}"})([(number, prompt)])

    with pytest.raises(InputError, match="processor = p0 but it is p1"):
        measure_missing(CONFIG, None, unlike, silent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "line 1 is no JSON object"),
        ('{"rows": []}\n', "does not begin as"),
        ('{"format": 1}\n', "damaged"),
        ('{"format": 1, "settings": {}, "provenance": {}, "methods": []}\n{"number": 0, "answers": [{}]}\n', "damaged"),
        ('{"format": 1, "settings": {}, "provenance": {}, "methods": []}\nnot\n', "line 2"),
        (
            '{"format": 1, "settings": {}, "provenance": {}, "methods": []}\n{"number": 0, "answers": [{"method": "x", '
            '"set": "s", "id": "1", "turn": 1, "asked": {}, "prompt_tokens": 1, "tokens": [1], "all_seconds": [1.0], '
            '"statistics": null, "divergence": null, "is_right": null, "limit": 1}]}\n',
            "does not know x",
        ),
    ],
)
def test_what_is_no_results_file_is_refused_and_left_alone(tmp_path, text, message):
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_results(path)
    with pytest.raises(CheckpointError):
        measure_missing(CONFIG, path, measuring([]), silent)
    assert path.read_text() == text


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_results(tmp_path / "none.jsonl")


def test_measurements_of_one_request_come_together(tmp_path):
    measured = [
        Measurement("plain", PROMPTS[0], 1, Answer((1,), 1.0, None), (1.0,), asked={"temperature": t})
        for t in (0.0, 1.0, 0.0)
    ]
    assert [(asked, len(done)) for asked, done in asked_apart(measured)] == [
        ({"temperature": 0.0}, 2), ({"temperature": 1.0}, 1)
    ]  # fmt: skip
    json.dumps([asked for asked, _ in asked_apart(measured)])
