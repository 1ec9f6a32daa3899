"""Many rounds of requests that come and go: every text plain decoding's, and no memory left behind.

python tests/soak.py --rounds 20000
"""

import argparse
import random
from pathlib import Path

import torch

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from test_requests import VOCABULARY, random_settings, target
from tiny_models import RandomTreeDrafter

KINDS = 40
PAGE, MAX_GROWTH = 4096, 16 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def cases(model, rng: random.Random) -> list:
    """Requests of random parameters, each with the tokens of plain decoding."""
    kinds = []
    for _ in range(KINDS):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 12))]
        settings = random_settings(rng)
        kinds.append((prompt, settings, plain_decode(model, prompt, settings)))
    return kinds


class Soak:
    """An engine under requests that join and leave at random."""

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)
        model = target()
        self.cases = cases(model, self.rng)
        self.engine = Engine(
            Parts(model, RandomTreeDrafter(VOCABULARY), FixedPolicy(5, 8)), max_batch=4, num_prefixes=3
        )
        self.pending: dict = {}
        self.finished = self.cancelled = 0

    def round(self) -> None:
        while self.engine.num_unfinished < self.rng.randint(1, 7):
            prompt, settings, expected = self.rng.choice(self.cases)
            request = self.engine.submit(prompt, settings)
            self.pending[request.id] = (request, expected)
        if self.rng.random() < 0.01:
            self._cancel_one()
        for request, piece in self.engine.step():
            if piece.finish_reason is not None:
                _, expected = self.pending.pop(request.id)
                assert request.tokens == expected, request.settings
                self.finished += 1

    def _cancel_one(self) -> None:
        request, expected = self.pending.pop(self.rng.choice(list(self.pending)))
        self.engine.cancel(request)
        assert request.tokens == expected[: len(request.tokens)]
        self.cancelled += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20_000)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    soak = Soak()
    settled = rounds // 5
    for index in range(rounds):
        soak.round()
        if index == settled:
            before = resident_bytes()
    growth = resident_bytes() - before
    assert soak.finished > rounds / 20, f"only {soak.finished} requests finished"
    assert growth < MAX_GROWTH, f"memory grew by {growth} bytes"
    print(f"{rounds} rounds, {soak.finished} requests equal to plain decoding, {soak.cancelled} cancelled,", end=" ")
    print(f"memory grew by {growth / 2**20:.1f} MiB after the first fifth")


if __name__ == "__main__":
    main()
