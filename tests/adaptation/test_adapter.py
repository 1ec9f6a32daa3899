"""Learning while serving: the text stays, speed alone changes, nothing is ever half old and half new."""

import threading
from dataclasses import replace

import pytest
import torch

from paceline.adaptation.adapter import Adapter
from paceline.adaptation.buffer import StreamBuffer
from paceline.adaptation.learner import Outcome, Update
from paceline.adaptation.settings import AdaptationSettings
from paceline.adaptation.task import DFlashTask, Eagle3Task, SpecBlockTask
from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.eagle3 import load_eagle3, save_eagle3
from paceline.checkpoints.specblock import load_specblock, save_specblock
from paceline.checkpoints.z_lab import load_dflash, save_dflash
from paceline.decode import Parts
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.eagle3 import Eagle3Drafter, Eagle3TreeConfig
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.drafters.specblock import SpecBlockDrafter, SpecBlockTreeConfig
from paceline.engine import Engine
from paceline.errors import CheckpointError, InputError
from paceline.learning.conversation import Conversation
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.tree import GROWTHS
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_eagle3 import tiny_eagle3
from tiny_models import tiny_target
from tiny_specblock import tiny_specblock


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=50, num_hidden_layers=4)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for one another over tiny products are what takes the time on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def specblock_task(target, folder):
    save_specblock(tiny_specblock(draft_vocab_size=40, has_head=False), folder / "drafter", dtype=torch.float32)
    network = load_specblock(folder / "drafter")
    network.attach(target.embedding.float(), target.head.float())
    tree = SpecBlockTreeConfig(num_blocks=2, num_starts=1, siblings=(1, 2, 2, 1))
    return SpecBlockTask(SpecBlockDrafter(network.to(target.info.dtype), tree, 6), folder / "drafter", target)


def eagle3_task(target, folder):
    save_eagle3(tiny_eagle3(draft_vocab_size=40, has_head=False), folder / "drafter", dtype=torch.float32)
    network = load_eagle3(folder / "drafter")
    network.attach(target.embedding.float(), target.head.float())
    serving = Eagle3Drafter(network.to(target.info.dtype), Eagle3TreeConfig(depth=3, num_starts=2, width=2), 6)
    return Eagle3Task(serving, folder / "drafter", target)


def dflash_task(target, folder):
    save_dflash(tiny_network(draft_vocab_size=40), folder / "drafter", dtype=torch.float32)
    network = load_dflash(folder / "drafter")
    network.attach(target.embedding.float(), target.head.float())
    serving = DFlashDrafter(network.to(target.info.dtype), GROWTHS["best_first"])
    return DFlashTask(serving, folder / "drafter", target)


EAGER = AdaptationSettings(
    max_loss=1.0, expected_queries=10_000, min_conversations=4, learning_rate=1e-2, head_steps=4, whole_steps=4
)


def every(count, arm="whole"):
    """A bandit's choice that takes `arm` every so many times."""
    calls = iter(range(10**6))
    return lambda *_: arm if next(calls) % count == 0 else None


def serve(target, adapter, queries, temperature=0.0, max_tokens=16, max_batch=1):
    """Answers to queries, and what plain decoding gives."""
    engine = Engine(Parts(target, adapter.task.serving, FixedPolicy(7, 6), observer=adapter), max_batch=max_batch)
    found, expected = [], []
    requests = []
    for query in range(queries):
        settings = GenerationSettings(max_tokens=max_tokens, temperature=temperature, seed=query, ignore_eos=True)
        prompt = [3 + query % 5, 7, 1 + query % 3]
        requests.append(engine.submit(prompt, settings))
        if max_batch == 1:
            engine.run()
        expected.append(plain_decode(target, prompt, settings))
    engine.run()
    found = [request.tokens for request in requests]
    return found, expected, requests


@pytest.mark.parametrize(
    "make", [dflash_task, *(pytest.param(make, marks=pytest.mark.slow) for make in (specblock_task, eagle3_task))]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_stays_while_weights_change_in_the_middle_of_it(target, tmp_path, make, temperature):
    adapter = Adapter(make(target, tmp_path), EAGER)
    adapter.bandit.choose = every(2)
    better = iter(range(1, 1000))
    adapter.learner.measure = lambda network, apart: (
        float(next(better)),
        50,
    )  # every update is kept, whatever it is worth
    before = {n: w.clone() for n, w in adapter.task.network.state_dict().items()}
    first = adapter.task.serving.network
    found, expected, _ = serve(target, adapter, 9, temperature, max_batch=3)
    assert found == expected
    assert adapter.updates and any(update.kept for update in adapter.updates)
    assert adapter.task.serving.network is not first
    assert any(not torch.equal(w, before[n]) for n, w in adapter.task.network.state_dict().items())


@pytest.mark.slow
def test_what_repeats_is_learned_and_more_of_it_is_accepted(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    adapter.bandit.choose = every(4)
    adapter.bandit._put_off = lambda times=2: None  # the stream is kept all along
    _, _, requests = serve(target, adapter, 24)
    tau = [request.statistics.acceptance_length for request in requests]
    assert sum(tau[-6:]) > 1.1 * sum(tau[:6])
    kept = [update for update in adapter.updates if update.kept]
    assert kept and all(update.after > update.before and update.seconds > 0 for update in kept)


def test_heads_alone_leave_the_layers_as_they_were(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    before = {n: w.clone() for n, w in adapter.task.network.state_dict().items()}
    adapter.learner.learn("heads", conversations(8))
    changed = {n for n, w in adapter.task.network.state_dict().items() if not torch.equal(w, before[n])}
    assert changed == {"lm_head.weight", "rank_head.0.weight", "rank_head.2.weight"}


def test_an_update_that_does_not_pay_is_rolled_back(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    values = iter([2.0, 1.95])
    adapter.learner.measure = lambda network, apart: (next(values), 50)
    before = {n: w.clone() for n, w in adapter.task.network.state_dict().items()}
    serving = adapter.task.serving.network
    adapter._finish(adapter.learner.update("whole", conversations(6), conversations(2)))
    assert not adapter.updates[0].kept and adapter.task.serving.network is serving
    assert all(torch.equal(w, before[n]) for n, w in adapter.task.network.state_dict().items())
    assert adapter.bandit.arms["whole"].mean < 0.05 and adapter.bandit.lost > 0


def test_an_update_that_gains_no_more_than_chance_does_not_serve_and_is_learned_on_from(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    values = iter([2.0, 2.05, 2.0, 2.6])
    adapter.learner.measure = lambda network, apart: (next(values), 50)
    before = {n: w.clone() for n, w in adapter.task.network.state_dict().items()}
    serving = adapter.task.serving.network
    adapter._finish(adapter.learner.update("whole", conversations(6), conversations(2)))
    assert not adapter.updates[0].kept and adapter.task.serving.network is serving
    assert any(not torch.equal(w, before[n]) for n, w in adapter.task.network.state_dict().items())
    adapter._finish(adapter.learner.update("whole", conversations(6), conversations(2)))
    assert adapter.updates[1].kept and adapter.task.serving.network is not serving


@pytest.mark.slow
def test_in_the_background_the_network_is_exchanged_between_rounds_by_the_thread_that_serves(target, tmp_path):
    adapter = Adapter(
        specblock_task(target, tmp_path), AdaptationSettings(max_loss=1.0, min_conversations=4, background=True)
    )
    adapter.bandit.choose = every(6, "heads")
    better = iter(range(1, 1000))
    learned, exchanged, first = [], [], adapter.task.serving.network
    adapter.learner.measure = lambda network, apart: (
        learned.append(threading.current_thread()) or float(next(better)),
        50,
    )
    finish = adapter._finish
    adapter._finish = lambda outcome: exchanged.append(threading.current_thread()) or finish(outcome)
    found, expected, _ = serve(target, adapter, 10)
    adapter._take_over()
    again, expected_again, _ = serve(target, adapter, 1)
    adapter.close()
    assert (found, again) == (expected, expected_again)
    assert learned and threading.main_thread() not in learned
    assert set(exchanged) == {threading.main_thread()} and adapter.task.serving.network is not first


def test_an_update_that_fails_is_booked_and_what_serves_goes_on(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    adapter.bandit.choose = every(1)
    serving = adapter.task.serving.network

    before = {n: w.clone() for n, w in adapter.task.network.state_dict().items()}
    real, calls = adapter.task.loss, []

    def fails(*args):
        calls.append(args)
        if len(calls) % 3 == 0:  # after two steps
            raise RuntimeError("out of memory")
        return real(*args)

    adapter.task.loss = fails
    with pytest.warns(UserWarning, match="could not learn"):
        found, expected, _ = serve(target, adapter, 6)
    assert found == expected and adapter.task.serving.network is serving
    assert adapter.updates and adapter.updates[0].gain == 0 and adapter.bandit.lost > 0
    assert all(torch.equal(w, before[n]) for n, w in adapter.task.network.state_dict().items())


def test_a_kept_update_is_no_drift(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    for _ in range(20):
        adapter._drift.saw(1.5)
    adapter._finish(Outcome(Update("whole", 1.5, 2.2, 1.5, 90, 1.0, True), adapter.task.serving.network, {}))
    assert not any(adapter._drift.saw(2.2) for _ in range(30))


def test_nothing_is_kept_while_the_bandit_rests_long_and_a_change_of_the_stream_is_seen_all_the_same(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    adapter.bandit.rest = 100
    seen = []
    adapter._drift.saw = seen.append
    serve(target, adapter, 3)
    assert len(seen) == 3 and not adapter.buffer.training and not adapter._recorder._rows
    adapter.bandit.rest = 5
    serve(target, adapter, 3)
    assert len(seen) == 6 and len(adapter.buffer.training) == 3


def test_beside_another_drafter_what_both_accept_is_measured(target, tmp_path):
    task = specblock_task(target, tmp_path)
    task.beside = PromptLookupDrafter()
    drafter = task.drafter(task.network)
    assert isinstance(drafter, MixtureDrafter) and drafter.second is task.beside
    repeating = Conversation(
        torch.tensor([1, 2, 3, 4] * 8, dtype=torch.int32),
        4,
        torch.randn(32, 64).bfloat16(),
        torch.zeros(32, 16, dtype=torch.int32),
        torch.full((32, 16), -2.8).half(),
    )
    both, _ = Adapter(task, EAGER).learner.measure(task.network, [repeating])
    task.beside = None
    assert both > Adapter(task, EAGER).learner.measure(task.network, [repeating])[0] + 1


def test_long_prompts_and_grammars_are_not_learned_from(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), AdaptationSettings(max_length=10, min_conversations=4))
    engine = Engine(Parts(target, adapter.task.serving, FixedPolicy(7, 6), observer=adapter))
    for prompt, edits in (
        ([3] * 11, {}),
        ([3, 4], {"logit_bias": {5: 1.0}}),
        ([3, 4], {"repetition_penalty": 1.2}),
        ([3, 4], {}),
    ):
        engine.submit(prompt, GenerationSettings(max_tokens=12, ignore_eos=True, **edits))
    engine.run()
    assert [len(conversation.tokens) for conversation in adapter.buffer.training] == [10]
    assert not adapter._recorder._rows


def test_an_interrupted_update_leaves_the_old_network_serving(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), EAGER)
    for conversation in conversations(8):
        adapter.buffer.add(conversation)
    adapter._due, adapter.bandit.choose = 1, lambda *_: "whole"
    before = {n: w.clone() for n, w in adapter.task.network.state_dict().items()}
    serving, calls = adapter.task.serving.network, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    real, adapter.task.loss = adapter.task.loss, interrupted
    with pytest.raises(KeyboardInterrupt):
        adapter.between_rounds()
    assert adapter.task.serving.network is serving
    assert all(torch.equal(w, before[n]) for n, w in adapter.task.network.state_dict().items())


def test_the_adapted_drafter_is_saved_elsewhere_and_the_original_stays(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), replace(EAGER, forced=True))
    original = (tmp_path / "drafter" / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="which is kept"):
        adapter.save(tmp_path / "drafter")
    serve(target, adapter, 6)
    adapter.save(str(tmp_path / "adapted"))
    assert (tmp_path / "drafter" / "model.safetensors").read_bytes() == original
    before, after = load_specblock(tmp_path / "drafter"), load_specblock(tmp_path / "adapted")
    assert after.config.has_head and not torch.equal(after.norm.weight, before.norm.weight)
    torch.testing.assert_close(after.norm.weight, adapter.task.network.norm.weight, atol=1e-2, rtol=1e-2)
    about = read_metadata(tmp_path / "adapted")
    assert (
        about["adapted_from"]["name"] == "drafter" and about["adaptation"]["updates_kept"] == len(adapter.updates) > 0
    )


@pytest.mark.slow
def test_where_updating_is_forced_every_update_is_kept_and_the_text_stays(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), AdaptationSettings(forced=True, learning_rate=1e-2))
    found, expected, _ = serve(target, adapter, 8)
    assert found == expected and len(adapter.updates) >= 3 and all(update.kept for update in adapter.updates)


@pytest.mark.slow
def test_an_update_learned_on_a_stream_that_has_changed_is_dropped(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), AdaptationSettings(forced=True, background=True))
    serving = adapter.task.serving.network
    before = {n: w.clone() for n, w in adapter.task.network.state_dict().items()}
    for conversation in conversations(8):
        adapter.buffer.add(conversation)
    adapter._due = 1
    adapter.between_rounds()
    adapter._drifts += 1
    adapter.close()
    assert adapter.task.serving.network is serving and not adapter.updates and adapter.bandit.lost > 0
    assert all(torch.equal(w, before[n]) for n, w in adapter.task.network.state_dict().items())
    found, expected, _ = serve(target, adapter, 8)  # closed: serves on, and learns no more
    assert found == expected and not adapter.updates


def test_weights_that_were_bfloat16_are_served_as_such(target, tmp_path):
    task = dflash_task(target, tmp_path)
    with torch.no_grad():
        task.network.norm.weight.add_(1e-4)
    exact = [w.bfloat16().to(w.dtype).equal(w) for w in task.serving_copy().state_dict().values()]
    assert not all(exact)
    save_dflash(task.network, tmp_path / "half")
    half = DFlashTask(task.serving, tmp_path / "half", target)
    with torch.no_grad():
        half.network.norm.weight.add_(1e-4)
    assert all(w.bfloat16().to(w.dtype).equal(w) for w in half.serving_copy().state_dict().values())


def test_a_long_answer_is_kept_no_further_than_is_learned_from(target, tmp_path):
    adapter = Adapter(specblock_task(target, tmp_path), AdaptationSettings(max_length=12, min_conversations=4))
    serve(target, adapter, 1, max_tokens=40)
    (kept,) = adapter.buffer.training
    assert len(kept.tokens) == 12 and kept.features.untyped_storage().nbytes() < 30 * 64 * 2


def conversations(count, length=20):
    found = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(50, (length,), generator=generator)
        top = torch.randint(50, (length, 16), generator=generator)
        found.append(
            Conversation(
                tokens.int(),
                5,
                torch.randn(length, 64, generator=generator).bfloat16(),
                top.int(),
                torch.full((length, 16), -2.8).half(),
            )
        )
    return found


def test_the_buffer_is_bounded_and_keeps_some_apart():
    buffer = StreamBuffer(max_tokens=100)
    for conversation in conversations(40):
        buffer.add(conversation)
    assert len(buffer.training) == 5 and len(buffer.apart) == 6
    apart = {id(conversation) for conversation in buffer.apart}
    assert not apart & {id(conversation) for conversation in buffer.training}
    buffer.add(conversations(1, length=101)[0])
    buffer.add(conversations(1, length=12)[0])
    assert len(buffer.training) == 5
    buffer.forget(4)
    assert len(buffer.training) == 4 and len(buffer.apart) == 1


def test_the_buffer_waits_until_it_was_shown_enough_since_it_forgot():
    buffer = StreamBuffer(max_tokens=100, ready_at=9)
    ready = []
    for conversation in conversations(12):
        buffer.add(conversation)
        ready.append(buffer.is_ready)
    assert ready == [False] * 8 + [True] * 4  # however few it holds
    buffer.forget(4)
    assert not buffer.is_ready
    for conversation in conversations(4):
        buffer.add(conversation)
    assert buffer.is_ready


def test_what_recurs_is_the_share_of_spans_that_others_have_too():
    shown = [conversations(1, length=30)[0] for _ in range(4)]
    tokens = [range(30), range(100, 130), range(200, 230), [*range(10, 24), *range(300, 316)]]
    buffer = StreamBuffer(max_tokens=1000)
    for conversation, ids in zip(shown, tokens, strict=True):
        buffer.add(replace(conversation, tokens=torch.tensor(list(ids), dtype=torch.int32), response_start=6))
    # of the last response, tokens 16 to 23 and then new ones: spans of six that begin at 16, 17, 18 are known
    assert buffer.recurring() == pytest.approx(3 / 19)


@pytest.mark.parametrize(
    "bad",
    [{"buffer_tokens": 2000}, {"expected_queries": -1}, {"max_loss": 2.0}, {"learning_rate": 0.0}, {"head_steps": 0}],
)
def test_absurd_settings_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        AdaptationSettings(**bad)
