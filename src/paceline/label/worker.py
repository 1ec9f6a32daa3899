"""One worker: holds the models, and decodes a prompt at every block size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.decode import Parts
from paceline.device_clock import device_clock
from paceline.drafters.base import Drafter
from paceline.engine import Engine, Request
from paceline.errors import InputError, PromptTooLongError
from paceline.label.config import LabelConfig
from paceline.labels import Label, prompt_digest
from paceline.loading import load
from paceline.policies.fixed import FixedPolicy
from paceline.prompts import Prompt, check_length
from paceline.types import GenerationSettings

WARM_UP_TOKENS = 16


class Labeller:
    """A model that answers a prompt once for every block size, alone and one after the other, so that times compare.

    Raises:
        InputError: a model without a drafter.
    """

    def __init__(self, config: LabelConfig):
        self.config = config
        self.model = load(**config.load, num_prefixes=0)
        drafter = self.model.drafter
        if drafter is None:
            raise InputError("drafter is 'none', but there is nothing to label without one; name a drafter.")
        self.drafter: Drafter = drafter
        self.block_sizes = config.sizes(drafter.default_block_size)
        # one budget for every size, so that sizes are compared and not numbers of nodes
        asked = config.load.get("tree_budget")
        self.tree_budget = asked or max(drafter.default_tree_budget, self.block_sizes[-1] - 1)
        policy = FixedPolicy(self.block_sizes[0], self.tree_budget)
        clock = device_clock(self.model.target.info.device)
        self._engine = Engine(Parts(self.model.target, drafter, policy), max_batch=1, clock=clock)
        self._is_warm = False

    def __call__(self, prompt: Prompt) -> Label | PromptTooLongError:
        """The label of one prompt, or why there is none: it leaves no room for an answer."""
        tokens = self.model.encode(prompt.text)
        try:
            check_length(prompt, len(tokens), self.model.target.info.max_context)
        except PromptTooLongError as error:
            return error
        if not self._is_warm:
            for size in self.block_sizes:
                self._answer(tokens, size, min(WARM_UP_TOKENS, self.config.max_tokens))
            self._is_warm = True
        logits, features, hidden = self._read(tokens)
        answers = [self._answer(tokens, size, self.config.max_tokens).statistics for size in self.block_sizes]

        def stage(*names: str) -> Tensor:
            return _seconds([1e-3 * sum(a.stage_ms.get(name, 0.0) for name in names) for a in answers])

        return Label(
            prompt_id=prompt.id,
            set_name=prompt.set_name,
            prompt_sha256=prompt_digest(prompt),
            made_with=self._making(),
            logits=logits,
            features=features,
            hidden=hidden,
            block_sizes=torch.tensor(self.block_sizes),
            rounds=torch.tensor([a.rounds for a in answers]),
            accepted=torch.tensor([a.accepted for a in answers]),
            tokens=torch.tensor([a.tokens for a in answers]),
            prefill_s=_seconds([a.prefill_s for a in answers]),
            decode_s=_seconds([a.decode_s for a in answers]),
            draft_s=stage("draft", "grow"),
            verify_s=stage("verify"),
        )

    def _answer(self, tokens: list[int], block_size: int, max_tokens: int) -> Request:
        """The whole answer at one block size."""
        settings = GenerationSettings(
            max_tokens=max_tokens,
            temperature=self.config.temperature,
            seed=self.config.seed,
            block_size=block_size,
            tree_budget=self.tree_budget,
        )
        request = self._engine.submit(tokens, settings)
        self._engine.run()
        return request

    @torch.inference_mode()
    def _read(self, tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """What a policy sees of the last prompt token: logits, the drafter's features, and the last layer's output."""
        target = self.model.target
        layers = (*self.drafter.feature_layers, target.info.num_layers - 1)
        found = target.prefill(target.new_cache(1, len(tokens)), 0, tokens, layers)
        assert found.features is not None, "a layer was asked for"
        size = target.info.hidden_size
        features, hidden = found.features[0, -1].split([size * (len(layers) - 1), size])
        return _copy(found.logits[0, -1]), _copy(features), _copy(hidden)

    def _making(self) -> dict[str, Any]:
        """What the models are, as loaded."""
        info = self.model.target.info
        return {"dtype": str(info.dtype), "device": info.device.type, "tree_budget": self.tree_budget}


def _seconds(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _copy(values: Tensor) -> Tensor:
    """A view would carry the whole prompt's along."""
    return values.float().cpu().clone()
