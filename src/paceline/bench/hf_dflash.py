"""Our DFlash network behind transformers' own DFlash generation: the outside reference for `dflash`."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from paceline.bench.method import Answer, HuggingFaceMethod
from paceline.drafters.dflash import DFlashDrafter
from paceline.errors import InputError
from paceline.models.dflash import DFlashNetwork
from paceline.models.layers import KeysValues
from paceline.types import GenerationSettings, Statistics

SPECULATION = "dflash"


class Assistant(nn.Module):
    """The network as `generate` calls a DFlash assistant: features of what was accepted and an embedded block come,
    hidden states of the block go. Keys and values are kept here, for transformers' cache holds those of its layers."""

    def __init__(self, network: DFlashNetwork, block_size: int):
        super().__init__()
        self.network, self.block_size = network, block_size
        config = network.config
        asked = {
            "num_hidden_layers": config.num_hidden_layers,
            "target_layer_ids": list(config.target_layer_ids),
            "block_size": self.block_size,
            "mask_token_id": config.mask_token_id,
        }
        self.config = PreTrainedConfig.from_dict(asked)
        self.calls = 0
        self._kept: list[KeysValues] = []

    def ask(self, block_size: int) -> None:
        """Draft blocks of this size from now on."""
        self.block_size = self.config.block_size = block_size

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.network.norm.weight.device

    def forward(
        self,
        noise_embeds: Float[Tensor, "1 s h"],
        context_hidden_states: Float[Tensor, "1 n f"],
        position_ids: Int64[Tensor, "1 u"],
        attention_mask: Tensor | None = None,
        cache: Any = None,
    ) -> BaseModelOutput:
        """`position_ids` are those of the context, then the block's."""
        self.calls += 1
        count = context_hidden_states.shape[1]
        positions, own = position_ids[:, :count], position_ids[:, count:]
        context = self.network.context(context_hidden_states)
        new = [layer.self_attn.context_kv(context, positions) for layer in self.network.layers]
        is_first = int(positions[0, 0]) == 0
        self._kept = new if is_first else [_joined(*pair) for pair in zip(self._kept, new, strict=True)]
        return BaseModelOutput(last_hidden_state=self.network.block(noise_embeds, own, self._kept))


class HuggingFaceDFlashMethod(HuggingFaceMethod):
    """Greedy `generate` of the unchanged Hugging Face model, with our network as its DFlash assistant."""

    name = "hf-dflash"

    def __init__(self, model: Any, drafter: DFlashDrafter, block_size: int | None = None):
        super().__init__(model)
        config = drafter.network.config
        if config.has_head or config.has_embedding:
            raise InputError(
                "method hf-dflash lends a drafter the target's embedding and head, but this one has its own; leave it "
                "out."
            )
        self.block_size = block_size or config.block_size
        self.assistant = Assistant(drafter.network, self.block_size)
        self.settings = {
            "implementation": "transformers generate, speculation_type='dflash'",
            "drafter": drafter.name,
            "block_size": self.block_size,
            "tree_budget": self.block_size - 1,
        }

    @torch.inference_mode()
    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        passes, self.assistant.calls = SimpleNamespace(count=0), 0
        self.assistant.ask(settings.block_size or self.block_size)
        hook = self.model.register_forward_hook(lambda *_: setattr(passes, "count", passes.count + 1))
        try:
            started = perf_counter()
            tokens = self._generate(prompt, settings, assistant_model=self.assistant)
            seconds = perf_counter() - started
        finally:
            hook.remove()
        return Answer(tokens, seconds, self._counts(prompt, tokens, passes.count - 1))

    def _generation(self, max_tokens: int) -> Any:
        config = super()._generation(max_tokens)
        config.speculation_type = SPECULATION
        return config

    def _counts(self, prompt: list[int], tokens: tuple[int, ...], rounds: int) -> Statistics:
        """In the loop's convention: tokens = 1 + rounds + accepted."""
        drafted = self.assistant.calls * (self.assistant.block_size - 1)
        return Statistics(
            prompt_tokens=len(prompt),
            tokens=len(tokens),
            rounds=rounds,
            drafted=drafted,
            accepted=len(tokens) - 1 - rounds,
            drafter_calls=self.assistant.calls,
        )


def _joined(kept: KeysValues, new: KeysValues) -> KeysValues:
    return torch.cat((kept[0], new[0]), 2), torch.cat((kept[1], new[1]), 2)
