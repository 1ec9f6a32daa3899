"""Results files: appended to line by line, gone on with after a kill, refused where something else is."""

import json

import pytest

from made_results import PLAIN, method, write_run
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
         "accelerator": "none", "threads": 2, "processor": "p", "torch": "2", "transformers": "5", "target": "t",
         "batch": 1, "cpu_capability": "AVX2"}  # fmt: skip
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


def written(tmp_path):
    """(path, its head, its first line), of a run of two prompts."""
    path = tmp_path / "out.jsonl"
    write_run(path, [PLAIN, method("dflash", 4.0, 3)], num_prompts=2)
    head, first, *_ = path.read_text().splitlines()
    return path, json.loads(head), json.loads(first)


@pytest.mark.parametrize("text", ["", "hello\n", "[" * 100_000 + "\n", '{"rows": []}\n', '{"format": 1}\n', "[]\n"])
def test_what_is_no_results_file_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="line 1 is not as a bench writes it"):
        read_results(path)
    if text:
        with pytest.raises(CheckpointError):
            measure_missing(CONFIG, path, measuring([]), silent)
    assert path.read_text() == text


IMPOSSIBLE = {
    "number": [-1, 1.5, 99, float("inf"), None, True],
    "answers": [[], None, [{}]],
    "answers.0.method": ["other", None],
    "answers.1.method": ["plain"],
    "answers.0.turn": [0, -1, float("inf"), "1"],
    "answers.0.asked": [None, {"../x": 1.0}, {"tau": 1.0}, {"temperature": float("nan")}, {"temperature": "0"}],
    "answers.0.prompt_tokens": [-1, 1e308, float("inf"), "3"],
    "answers.0.tokens": [[], [float("inf")], [1e308], [-1], ["a"], None],
    "answers.0.all_seconds": [[], [0.0], [-1.0], [1e-308], [float("inf")], [float("nan")], ["1"], None],
    "answers.0.statistics": [{}, 3, {"rounds": 1}],
    "answers.0.statistics.rounds": [None, "1", [1], -1, float("nan"), 1e308],
    "answers.0.statistics.accepted": [-1, float("inf"), 1.5],
    "answers.0.statistics.stage_ms": [1.0, {"draft": -1.0}, {"draft": float("nan")}, {"draft": None}],
    "answers.0.statistics.accepted_by_position": [None, [-1], ["1"]],
    "answers.0.statistics.block_sizes": [{"x": 1}, [1]],
    "answers.0.divergence": [{}, {"position": -1, "gap": 0.0, "bound": 0.0}, 1],
    "answers.0.is_right": [0, "yes"],
    "answers.0.limit": [-1, 0, float("inf")],
}
IMPOSSIBLE_HEADS = {
    "format": [True, 2, "1"],
    "settings": [None, [], {}],
    "provenance": [{}, None],
    "provenance.dtype": [None, 1],
    "provenance.processor": [None],
    "methods": [None, {}],
    "methods.1.name": ["plain", None],
    "methods.0.settings": [None, 1, "x", [], {"block_size": "x"}, {"block_size": float("nan")}],
    "methods.0.family": [None, 1, [], {}],
    "methods.0.policy": [1, [], None],
    "methods.0.sizes": [None, 1, {"tree_budget": 4}, {"tree_budget": "x"}, {"width": 4}],
}


def cases(table):
    return [(where, value) for where, values in table.items() for value in values]


def put(row, where, value):
    *path, last = where.split(".")
    for name in path:
        row = row[int(name)] if isinstance(row, list) else row[name]
    row[last] = value


@pytest.mark.parametrize(("where", "value"), cases(IMPOSSIBLE))
def test_an_impossible_measurement_is_refused_by_its_line(tmp_path, where, value):
    path, head, first = written(tmp_path)
    assert len(read_results(path).by_prompt) == 2
    put(first, where, value)
    path.write_text(f"{json.dumps(head)}\n{json.dumps(first)}\n")
    with pytest.raises(CheckpointError, match="line 2 is not as a bench writes it"):
        read_results(path)


@pytest.mark.parametrize(("where", "value"), cases(IMPOSSIBLE_HEADS))
def test_an_impossible_head_is_refused(tmp_path, where, value):
    path, head, first = written(tmp_path)
    put(head, where, value)
    path.write_text(f"{json.dumps(head)}\n{json.dumps(first)}\n")
    with pytest.raises(CheckpointError, match="line 1 is not as a bench writes it"):
        read_results(path)


def test_a_prompt_that_is_there_twice_is_refused(tmp_path):
    path, head, first = written(tmp_path)
    path.write_text(f"{json.dumps(head)}\n{json.dumps(first)}\n{json.dumps(first)}\n")
    with pytest.raises(CheckpointError, match=r"line 3 .*twice"):
        read_results(path)


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
