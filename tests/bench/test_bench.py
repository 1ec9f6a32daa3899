"""The bench on a tiny model: what it measures, compares and writes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from number_words import NumberWords
from paceline.bench.measurement import Measurement, as_json
from paceline.bench.method import Answer, HuggingFaceMethod, Method
from paceline.bench.methods import EngineMethod
from paceline.bench.rows import AnswerRow
from paceline.bench.run import Bench, interleaved, measure
from paceline.bench.summary import slower_than_hugging_face, summarise
from paceline.bench.table import results_table
from paceline.decode import Parts
from paceline.drafters.traced import Round, TracedDrafter
from paceline.engine import Engine
from paceline.near_ties import find_divergence
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.prompts import Prompt
from paceline.result_files import write_json
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.types import GenerationSettings
from tiny_models import RandomTreeDrafter, tiny_model, tiny_target

PROMPTS = [Prompt("tiny", str(i), f"{1 + i} 2 3") for i in range(3)]
SETTINGS = GenerationSettings(max_tokens=8)
ASKED = {"temperature": 0.0, "max_tokens": 8.0}


@pytest.fixture(scope="module")
def measured():
    model = tiny_model("llama")
    target = HuggingFaceTarget(model, "tiny")
    methods = [
        EngineMethod("plain", Engine(Parts(target)), {}),
        EngineMethod("random", Engine(Parts(target, RandomTreeDrafter(40), FixedPolicy(5, 12))), {}),
        HuggingFaceMethod(model),
    ]
    reports = []
    done = measure(Bench(NumberWords(target), methods, [(SETTINGS, ASKED)], 2), PROMPTS, reports.extend)
    assert reports == done
    return methods, done


def test_every_method_gives_the_same_text_as_hugging_face(measured):
    _, done = measured
    texts = {(x.method, x.prompt.id): x.answer.tokens for x in done}
    for prompt in PROMPTS:
        assert texts["plain", prompt.id] == texts["random", prompt.id] == texts["hf", prompt.id]


def test_rows_hold_what_the_json_promises(measured):
    methods, done = measured
    rows = summarise(methods, done)
    assert [row["method"] for row in rows] == ["plain", "random", "hf"]
    plain, drafted, hf = rows
    assert (plain["speedup"], plain["speedup_low"], plain["speedup_high"]) == (1.0, 1.0, 1.0)
    assert plain["acceptance_length"] == 1.0 and plain["nodes_per_round"] == 0.0
    assert drafted["acceptance_length"] > 1.0 and drafted["same_text"] == 3
    assert hf["acceptance_length"] is None
    assert plain["tokens"] == sum(len(x.answer.tokens) for x in done if x.method == "plain") == 24
    assert plain["drafter_calls"] == 0 and hf["drafter_calls"] is None
    assert set(drafted["stage_ms"]) >= {"verify", "accept", "commit"}
    assert 0.0 < drafted["overhead"] < 1.0
    assert plain["hit_limit"] == 1.0 and (plain["judged"], plain["right"]) == (0, 0)
    results_table(rows, {"dtype": "float64"})


def test_the_order_of_methods_rotates_and_repeats_are_interleaved():
    calls = []

    class Fake(Method):
        def __init__(self, name):
            self.name = name
            self.settings = {}

        def answer(self, prompt, settings):
            calls.append((self.name, prompt[0]))
            return Answer((1, 2), float(len(calls)), None)

    model = NumberWords(tiny_target("llama"))
    done = measure(Bench(model, [Fake("a"), Fake("b")], [(SETTINGS, ASKED)], 2), PROMPTS[:2], lambda _: None)
    assert calls[2:] == [("a", 1), ("b", 1)] * 2 + [("b", 2), ("a", 2)] * 2
    assert [x.seconds for x in done] == [4.0, 5.0, 9.0, 8.0]


def test_a_few_prompts_turn_the_order_of_many_methods_all_the_way_round():
    class Fake(Method):
        def __init__(self, number):
            self.number = number

        def answer(self, prompt, settings):
            order.append(self.number)
            return Answer((1,), 1.0, None)

    methods = [Fake(number) for number in range(60)]
    places = []
    for prompt in range(6):
        order = []
        interleaved(methods, [1], SETTINGS, 1, prompt)
        assert sorted(order) == list(range(60))
        places.append(order.index(0))
    gaps = np.diff([*sorted(places), min(places) + 60])
    assert gaps.max() < 60 / 3 and abs(np.mean(places) - 30) < 10


def test_a_divergence_is_found_with_the_gap_of_the_plain_targets_logits():
    target = tiny_target("llama")
    plain = plain_decode(target, [1, 2, 3], SETTINGS)
    assert find_divergence(target, [1, 2, 3], plain, plain, SETTINGS) is None
    other = [*plain[:4], (plain[4] + 1) % 40, *plain[5:]]
    divergence = find_divergence(target, [1, 2, 3], plain, other, SETTINGS)
    assert divergence.position == 4
    assert divergence.gap > 0 and not divergence.is_near_tie


def test_a_gap_of_a_few_units_in_the_last_place_is_a_near_tie():
    target = tiny_target("llama")
    head = target.model.get_output_embeddings().weight
    plain = plain_decode(target, [1, 2, 3], SETTINGS)
    twin = (plain[4] + 1) % 40
    with torch.no_grad():
        head[twin] = head[plain[4]]
    divergence = find_divergence(target, [1, 2, 3], plain, [*plain[:4], twin, *plain[5:]], SETTINGS)
    assert divergence.is_near_tie and divergence.gap == 0.0 < divergence.bound


def test_a_sampled_divergence_is_judged_with_the_noise_of_its_position():
    target = tiny_target("llama")
    sampled = GenerationSettings(max_tokens=8, temperature=1.0, seed=5)
    plain = plain_decode(target, [1, 2, 3], sampled)
    other = [*plain[:4], (plain[4] + 1) % 40, *plain[5:]]
    greedy_gap = find_divergence(target, [1, 2, 3], plain, other, SETTINGS).gap
    gap = find_divergence(target, [1, 2, 3], plain, other, sampled).gap
    assert gap > 0 and gap != pytest.approx(greedy_gap)


def test_divergences_are_counted_in_the_row(measured):
    methods, done = measured
    target = tiny_target("llama")
    x = next(x for x in done if x.method == "random")
    wrong = find_divergence(target, [1, 2, 3], [1, 2], [1, 3], SETTINGS)
    row = summarise(methods, [replace(y, divergence=wrong) if y is x else y for y in done])[1]
    assert (row["same_text"], row["near_ties"]) == (2, 0)
    assert row["largest_gap"] == wrong.gap


def test_a_result_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.json"
    write_json(path, {"rows": [1]})
    with pytest.raises(TypeError):
        write_json(path, {"rows": object()})
    assert json.loads(path.read_text()) == {"rows": [1]}
    assert list(tmp_path.iterdir()) == [path]


def test_the_traced_accepted_path_is_the_one_that_was_emitted():
    target = tiny_target("llama")
    traced = TracedDrafter(RandomTreeDrafter(40))
    engine = Engine(Parts(target, traced, FixedPolicy(5, 12)))
    request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=40))
    engine.run()
    tokens = [*request.prompt, *request.tokens]
    accepted = [len(r.accepted(tokens)) for r in traced.rounds]
    assert sum(accepted) == request.statistics.accepted > 0
    assert all(isinstance(r, Round) for r in traced.rounds)


def test_seconds_per_token_is_what_speedups_are_made_of():
    measurement = Measurement("a", PROMPTS[0], 3, Answer((1, 2, 3, 4), 9.0, None), (2.0, 9.0, 1.0))
    assert measurement.seconds_per_token == 0.5


class Echo(Method):
    """Answers with the last word of its prompt, once or as often as it was asked."""

    def __init__(self, name, settings=None, then=0):
        self.name, self.settings, self.then = name, settings or {}, then
        self.prompts = []

    def answer(self, prompt, settings):
        self.prompts.append(list(prompt))
        return Answer((prompt[-1], self.then), 1.0, None)


def test_later_turns_follow_the_first_methods_answer_and_every_method_reads_the_same():
    first, second = Echo("plain"), Echo("other")
    bench = Bench(NumberWords(tiny_target("llama")), [first, second], [(SETTINGS, ASKED)])
    done = bench((0, Prompt("talk", "1", "4 5", ("6", "7 8"))))
    assert first.prompts == second.prompts == [[4, 5], [4, 5, 5, 0, 6], [4, 5, 5, 0, 6, 6, 0, 7, 8]]
    assert [x.place for x in done] == [("talk", "1", turn) for turn in (1, 1, 2, 2, 3, 3)]


def test_without_a_chat_template_the_first_turn_is_all():
    bench = Bench(NumberWords(tiny_target("llama"), can_converse=False), [Echo("plain")], [(SETTINGS, ASKED)])
    assert len(bench((0, Prompt("talk", "1", "4 5", ("6",))))) == 1


def test_a_turn_that_leaves_no_room_is_said_not_to_be_asked():
    target = tiny_target("llama")
    long = " ".join(["7"] * target.info.max_context)
    bench = Bench(NumberWords(target), [Echo("plain")], [(SETTINGS, ASKED)])
    with pytest.warns(UserWarning, match="turn 2 of prompt '1' of talk is not asked"):
        done = bench((0, Prompt("talk", "1", "4", (long, "5"))))
    assert [x.turn for x in done] == [1]


def test_an_answer_is_cut_where_the_request_or_the_context_ends_it():
    target = tiny_target("llama")
    bench = Bench(NumberWords(target), [Echo("plain")], [(replace(SETTINGS, max_tokens=2), ASKED)])
    short, full = bench((0, Prompt("a", "1", "4")))[0], " ".join(["7"] * (target.info.max_context - 1))
    assert short.limit == 2 and short.hit_limit
    assert bench((0, Prompt("a", "2", full)))[0].limit == 1
    assert not replace(short, limit=3).hit_limit


def test_every_kind_of_request_is_warmed_up():
    sampled = replace(SETTINGS, temperature=1.0, max_tokens=64, min_tokens=32)
    asked = []

    class Fake(Echo):
        def answer(self, prompt, settings):
            asked.append((settings.temperature, settings.max_tokens, settings.min_tokens))
            return super().answer(prompt, settings)

    Bench(NumberWords(tiny_target("llama")), [Fake("a")], [(SETTINGS, ASKED), (sampled, ASKED)]).warm_up(PROMPTS[0])
    assert asked == [(0.0, 8, 0), (1.0, 16, 0)]


def test_a_text_that_parts_is_found_while_it_is_measured_unless_it_is_another_sample():
    sampled = replace(SETTINGS, temperature=1.0)
    methods = [Echo("plain"), Echo("wrong", then=1), Echo("drawn", {"rule": "reject"}, then=1)]
    asked = [(SETTINGS, ASKED), (sampled, ASKED | {"temperature": 1.0})]
    done = Bench(NumberWords(tiny_target("llama")), methods, asked)((0, PROMPTS[0]))
    apart = [(x.method, x.asked["temperature"]) for x in done if x.divergence is not None]
    assert apart == [("wrong", 0.0), ("drawn", 0.0), ("wrong", 1.0)]
    assert all(x.divergence.position == 1 for x in done if x.divergence is not None)


def test_answers_are_judged_by_the_first_turn():
    def judge(prompt, text):
        return text == "3 0"

    methods = [Echo("plain"), Echo("wrong", then=1)]
    bench = Bench(NumberWords(tiny_target("llama")), methods, [(SETTINGS, ASKED)], judge=judge)
    done = bench((0, Prompt("sums", "1", "3", ("3",))))
    assert [x.is_right for x in done] == [True, False, None, None]
    rows = summarise(methods, done)
    assert [(row["judged"], row["right"]) for row in rows] == [(1, 1), (1, 0)]


def test_a_measurement_comes_back_from_json_as_it_went(measured):
    _, done = measured
    wrong = replace(done[1], divergence=find_divergence(tiny_target("llama"), [1], [1, 2], [1, 3], SETTINGS))
    for x in (*done, wrong):
        back = AnswerRow.model_validate_json(json.dumps(as_json(x))).measurement()
        assert (back.method, back.place, back.asked, back.divergence) == (x.method, x.place, x.asked, x.divergence)
        assert (back.answer.tokens, back.answer.statistics) == (x.answer.tokens, x.answer.statistics)
        assert back.seconds == x.seconds


def test_plain_decoding_slower_than_hugging_face_is_warned_of():
    rows = [{"method": "plain", "tokens_per_s": 9.0}, {"method": "hf", "tokens_per_s": 10.0}]
    assert "flatter" in slower_than_hugging_face(rows)
    assert slower_than_hugging_face([{**rows[0], "tokens_per_s": 11.0}, rows[1]]) is None
    assert slower_than_hugging_face(rows[:1]) is None
