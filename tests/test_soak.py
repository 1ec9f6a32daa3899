"""Many rounds of requests that come and go: every text plain decoding's, and no memory left behind."""

import random
from pathlib import Path

import pytest

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from test_requests import VOCABULARY, random_settings, target
from tiny_models import RandomTreeDrafter

ROUNDS, SETTLED, KINDS = 1_500, 300, 40
PAGE, GROWTH = 4096, 16 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_soak():
    rng = random.Random(0)
    model = target()
    kinds = []
    for _ in range(KINDS):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 12))]
        settings = random_settings(rng)
        kinds.append((prompt, settings, plain_decode(model, prompt, settings)))
    engine = Engine(Parts(model, RandomTreeDrafter(VOCABULARY), FixedPolicy(5, 8)), max_batch=4, num_prefixes=3)
    pending, before, rounds, checked = {}, 0, 0, 0
    while rounds < ROUNDS:
        while engine.num_unfinished < rng.randint(1, 7):
            prompt, settings, expected = rng.choice(kinds)
            pending[engine.submit(prompt, settings).id] = expected
        if rng.random() < 0.01 and engine.num_unfinished:
            cancelled = rng.choice([*engine._active, *engine._waiting])
            engine.cancel(cancelled)
            assert cancelled.tokens == pending.pop(cancelled.id)[: len(cancelled.tokens)]
        for request, piece in engine.step():
            if piece.finish_reason is not None:
                assert request.tokens == pending.pop(request.id), request.settings
                checked += 1
        rounds += 1
        if rounds == SETTLED:
            before = resident_bytes()
    assert checked > 100
    assert resident_bytes() - before < GROWTH
