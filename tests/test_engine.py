import pytest

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.errors import InputError, PromptTooLongError
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings
from tiny_models import RandomTreeDrafter, tiny_target


class LetterTokenizer:
    """Token t is the letter chr(97 + t mod 26)."""

    def decode(self, token_ids, skip_special_tokens=True):
        return "".join(chr(97 + t % 26) for t in token_ids)


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


def drafted(target, seed=0):
    return Parts(target, RandomTreeDrafter(40, seed), FixedPolicy(5, 12))


def test_max_tokens_is_exact_and_the_reason_is_length(target):
    for wanted in (1, 2, 3, 7):
        engine = Engine(drafted(target))
        request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=wanted))
        engine.run()
        assert len(request.tokens) == wanted
        assert request.finish_reason == "length"
        assert request.statistics.tokens == wanted


def test_the_context_ends_the_text_when_it_is_full(target):
    prompt = [1 + i % 30 for i in range(250)]
    engine = Engine(drafted(target))
    request = engine.submit(prompt, GenerationSettings(max_tokens=100))
    engine.run()
    assert len(request.tokens) == 6
    assert request.finish_reason == "length"


def test_text_ends_at_the_first_end_of_text_token_even_inside_an_accepted_path(target):
    text = plain_decode(target, [1, 2, 3], GenerationSettings(max_tokens=20))
    eos = text[6]
    stopping = tiny_target("llama", eos_token_id=eos)
    for seed in range(5):
        engine = Engine(drafted(stopping, seed))
        request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=20))
        engine.run()
        assert request.tokens == text[: text.index(eos) + 1]
        assert request.finish_reason == "stop"
        assert request.statistics.tokens == len(request.tokens)


def test_usage_counts_what_was_emitted_and_nothing_else(target):
    text = plain_decode(target, [1, 2, 3], GenerationSettings(max_tokens=20))
    stopping = tiny_target("llama", eos_token_id=text[6])
    cut = 0
    for seed in range(5):
        for limit in (4, 20):
            engine = Engine(drafted(stopping, seed))
            request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=limit))
            engine.run()
            usage = request.statistics
            received = [token for piece in request.pieces for token in piece.tokens]
            assert usage.tokens == len(received) == 1 + usage.rounds + usage.accepted
            assert usage.prompt_tokens == 3
            cut += usage.drafted - usage.accepted
    assert cut > 0, "every drafted token was emitted: the test shows nothing"


def test_a_stop_string_across_rounds_ends_the_text_before_it(target):
    plain = plain_decode(target, [1, 2, 3], GenerationSettings(max_tokens=20))
    letters = LetterTokenizer().decode(plain)
    stop = letters[7:10]
    engine = Engine(drafted(target), LetterTokenizer())
    request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=20, stop=(stop,)))
    text = "".join(piece.text for piece in engine.stream(request))
    end = letters.index(stop)
    assert text == letters[:end]
    assert request.tokens == plain[: end + len(stop)]
    assert request.finish_reason == "stop"


def test_the_earliest_of_stop_and_limit_wins(target):
    plain = plain_decode(target, [1, 2, 3], GenerationSettings(max_tokens=20))
    letters = LetterTokenizer().decode(plain)
    stop = letters[8:11]
    end = letters.index(stop) + len(stop)
    for limit, reason in ((end - 1, "length"), (end, "stop"), (end + 1, "stop")):
        engine = Engine(drafted(target), LetterTokenizer())
        request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=limit, stop=(stop,)))
        engine.run()
        assert (len(request.tokens), request.finish_reason) == (min(limit, end), reason)
        statistics = request.statistics
        assert statistics.tokens == len(request.tokens) == 1 + statistics.rounds + statistics.accepted
        assert sum(statistics.accepted_by_position) == statistics.accepted


def test_streamed_pieces_join_to_the_text_and_the_last_one_reports(target):
    engine = Engine(drafted(target), LetterTokenizer())
    request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=11))
    pieces = list(engine.stream(request))
    assert [t for p in pieces for t in p.tokens] == request.tokens
    assert "".join(p.text for p in pieces) == LetterTokenizer().decode(request.tokens)
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    statistics = pieces[-1].statistics
    assert statistics.rounds and statistics.drafted >= statistics.accepted
    assert statistics.tokens == 1 + statistics.accepted + statistics.rounds
    assert sum(statistics.accepted_by_position) == statistics.accepted
    assert set(statistics.stage_ms) >= {"choose", "verify", "accept", "commit"}


def test_a_cancelled_request_leaves_the_others_as_they_would_be_alone(target):
    engine = Engine(drafted(target), max_batch=3)
    requests = [engine.submit([5 + i, 2], GenerationSettings(max_tokens=12)) for i in range(5)]
    engine.step()
    engine.cancel(requests[0])
    engine.cancel(requests[4])
    engine.run()
    assert requests[0].finish_reason == "cancelled" and len(requests[0].tokens) < 12
    assert requests[4].finish_reason == "cancelled" and requests[4].tokens == []
    for request in requests[1:4]:
        assert request.tokens == plain_decode(target, request.prompt, request.settings)


def test_closing_a_stream_cancels_its_request(target):
    engine = Engine(drafted(target))
    request = engine.submit([1, 2], GenerationSettings(max_tokens=30))
    stream = engine.stream(request)
    next(stream)
    stream.close()
    assert request.finish_reason == "cancelled"
    assert engine.num_unfinished == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", ["prefill", "reserve"])
def test_an_interrupted_admission_frees_its_row_and_leaves_the_others(target, monkeypatch, error, where):
    engine = Engine(drafted(target), max_batch=3)
    first = engine.submit([5, 2], GenerationSettings(max_tokens=12))
    engine.step()
    broken = engine.submit([6, 2], GenerationSettings(max_tokens=12))

    def interrupt(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(*((target, "prefill") if where == "prefill" else (engine._batch.cache, "reserve")), interrupt)
        with pytest.raises(error):
            engine.step()
    last = engine.submit([7, 2], GenerationSettings(max_tokens=12))
    engine.run()
    assert broken.finish_reason == "cancelled" and broken.tokens == []
    for request in (first, last):
        assert request.tokens == plain_decode(target, request.prompt, request.settings)


def test_streams_may_interleave(target):
    engine = Engine(drafted(target), max_batch=2)
    requests = [engine.submit([5 + i, 2], GenerationSettings(max_tokens=12 + 6 * i)) for i in range(3)]
    streams = [engine.stream(request) for request in requests]
    pieces = [[next(streams[0])], [], []]
    for order in ((1, 2), (0,)):
        for i in order:
            pieces[i] += list(streams[i])
    for request, got in zip(requests, pieces, strict=True):
        assert [t for piece in got for t in piece.tokens] == plain_decode(target, request.prompt, request.settings)
        assert [piece.finish_reason for piece in got][-1] == "length"


def test_a_long_request_that_does_not_draft_has_room_beside_one_that_does(target):
    engine = Engine(drafted(target), max_batch=2)
    short = engine.submit([1, 2], GenerationSettings(max_tokens=30, tree_budget=40))
    engine.step()
    long = engine.submit([3] * 90, GenerationSettings(max_tokens=20, draft=False))
    engine.run()
    for request in (short, long):
        assert request.tokens == plain_decode(target, request.prompt, request.settings)


def test_drafting_can_be_switched_off_for_one_request(target):
    engine = Engine(drafted(target), max_batch=2)
    on = engine.submit([1, 2, 3], GenerationSettings(max_tokens=10))
    off = engine.submit([1, 2, 3], GenerationSettings(max_tokens=10, draft=False))
    engine.run()
    assert on.tokens == off.tokens
    assert off.statistics.drafted == 0 and on.statistics.drafted > 0
    assert off.statistics.rounds == 9


def test_a_request_sets_its_own_tree_budget(target):
    engine = Engine(drafted(target))
    request = engine.submit([1, 2, 3], GenerationSettings(max_tokens=10, tree_budget=40))
    engine.run()
    small = engine.submit([1, 2, 3], GenerationSettings(max_tokens=10, tree_budget=1))
    engine.run()
    assert small.statistics.drafted <= small.statistics.rounds
    assert request.statistics.drafted / request.statistics.rounds > 10
    assert request.tokens == small.tokens


def test_unusable_prompts_are_refused_with_a_sentence(target):
    engine = Engine(drafted(target))
    with pytest.raises(InputError, match="empty"):
        engine.submit([], GenerationSettings())
    with pytest.raises(InputError, match="token 99 is outside the vocabulary of 40"):
        engine.submit([1, 99], GenerationSettings())
    with pytest.raises(PromptTooLongError, match=r"256 tokens.*context of 256"):
        engine.submit([1] * 256, GenerationSettings())
    with pytest.raises(InputError, match="stop strings need a tokenizer"):
        engine.submit([1], GenerationSettings(stop=("x",)))


@pytest.mark.slow
def test_thousands_of_rounds_neither_grow_the_cache_nor_change_the_text():
    target = tiny_target("llama", num_hidden_layers=1)
    engine = Engine(Parts(target, RandomTreeDrafter(40), FixedPolicy(3, 2)), max_batch=4)
    reference = plain_decode(target, [1, 2], GenerationSettings(max_tokens=50))
    rounds = 0
    engine.submit([1, 2], GenerationSettings(max_tokens=50))
    engine.run()
    slots = engine._batch.cache.num_slots
    while rounds < 4_000:
        requests = [engine.submit([1, 2], GenerationSettings(max_tokens=50)) for _ in range(4)]
        engine.run()
        assert all(r.tokens == reference for r in requests)
        rounds += sum(r.statistics.rounds for r in requests)
    assert engine._batch.cache.num_slots == slots
