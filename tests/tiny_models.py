"""Tiny random models of several families, and a drafter that proposes at random: tests in seconds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gpt_neox import GPTNeoXConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_moe import Qwen3MoeConfig

from paceline.drafters.base import Drafter, DraftRequest, NoState
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.tree import DraftTree

_SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8}

CONFIGS = {
    "llama": lambda: LlamaConfig(**_GROUPED),
    "qwen3": lambda: Qwen3Config(**_GROUPED),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1
    ),
    "gemma2_sliding": lambda: Gemma2Config(
        **_GROUPED,
        sliding_window=6,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "mistral_sliding": lambda: MistralConfig(**_GROUPED, sliding_window=5),
    "gpt_neox": lambda: GPTNeoXConfig(**_SIZES),
}
#: The grouped product of this family's experts has no float64.
FLOAT32_ONLY = {"qwen3_moe"}


def tiny_model(family: str = "llama", vocab_size: int = 40, seed: int = 0, **changes: Any) -> Any:
    """A random model with logits spread enough that greedy text varies."""
    config = CONFIGS[family]()
    config.vocab_size = vocab_size
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if "gemma" in family else "sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)
    dtype = torch.float32 if family in FLOAT32_ONLY else torch.float64
    model.generation_config.eos_token_id = config.eos_token_id
    return model.to(dtype).eval()


def tiny_target(family: str = "llama", **options: Any) -> HuggingFaceTarget:
    return HuggingFaceTarget(tiny_model(family, **options), f"tiny-{family}")


class RandomTreeDrafter(Drafter):
    """Proposes random trees over the vocabulary, some of whose paths the target happens to take."""

    name = "random"
    default_block_size = 5
    default_tree_budget = 12

    def __init__(self, vocab_size: int, seed: int = 0, chain: bool = False):
        self.vocab_size = vocab_size
        self.chain = chain
        self.random = random.Random(seed)

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> NoState:
        return NoState()

    def observe(self, state: Any, first_row: int, features: Any, counts: Sequence[int]) -> None:
        pass

    def draft(self, state: Any, requests: Sequence[DraftRequest], clock: Any) -> list[DraftTree]:
        return [self._tree(request) for request in requests]

    def _tree(self, request: DraftRequest) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        depths = [0]
        taken: set[tuple[int, int]] = set()
        for _ in range(request.tree_budget if request.wants_nodes else 0):
            parent = len(tokens) if self.chain else self.random.randint(0, len(tokens))
            token = self.random.randrange(self.vocab_size)
            if (parent, token) in taken or depths[parent] >= min(request.block_size - 1, request.max_depth):
                continue
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
        return DraftTree(
            torch.tensor(tokens, dtype=torch.int64),
            torch.tensor(parents, dtype=torch.int64),
            torch.zeros(len(tokens)),
        )
