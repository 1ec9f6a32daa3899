"""Any decoder-only Hugging Face causal language model as a target.

The model's own code runs, on a CPU with faster twins of some of its modules: it is given position ids, a 4-D mask
(one per kind of attention layer) and a cache of ours. Models whose state cannot be rolled back to an accepted path are
refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from paceline.errors import InputError, UnsupportedModelError
from paceline.kv_cache import LayerShape, SlotCache
from paceline.target.base import Pass, Target, TargetInfo
from paceline.target.masks import tree_mask
from paceline.tree import TreeBatch

# Kinds of attention layer that a 4-D mask describes completely.
_FULL, _SLIDING = "full_attention", "sliding_attention"


class _SlotCacheView(Cache):
    """The cache that a Hugging Face model sees: it appends to the open pass of a `SlotCache`."""

    def __init__(self, slots: SlotCache):
        super().__init__(layers=[])
        self.slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self.slots.append(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.slots.starts)


class _ShapeProbe(Cache):
    """Records the key and value shapes of each layer during one small forward pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.shapes[layer_idx] = LayerShape(key_states.shape[1], key_states.shape[3], value_states.shape[3])
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class HuggingFaceTarget(Target):
    """A `transformers` decoder behind the loop's interface.

    Raises:
        UnsupportedModelError: encoder-decoder, recurrent or linear-attention models, models without
            position ids, and rotary scalings that depend on the longest sequence of a batch.
    """

    def __init__(self, model: PreTrainedModel, name: str, prefill_chunk: int = 512):
        _refuse_unsupported(model, name)
        self.model = model.eval()
        self.prefill_chunk = prefill_chunk
        self._cache_argument = _cache_argument(model)
        self._masks_by_type = _attention_windows(model.config)
        self._layers = _decoder_layers(model)
        self._tapped: set[int] = set()
        self._taps: dict[int, Tensor] = {}
        self.embedding = _weight(model.get_input_embeddings())
        self.head = _weight(model.get_output_embeddings())
        self.info = TargetInfo(
            name=name,
            num_layers=model.config.num_hidden_layers,
            hidden_size=model.config.hidden_size,
            vocab_size=self.head.shape[0],
            max_context=getattr(model.config, "max_position_embeddings", None) or 2**31 - 1,
            eos_token_ids=_eos_token_ids(model),
            dtype=self.embedding.dtype,
            device=self.embedding.device,
        )
        self._shapes = self._probe_shapes()

    def check_layers(self, layer_ids: Sequence[int]) -> None:
        wrong = [i for i in layer_ids if not 0 <= i < len(self._layers)]
        if wrong:
            raise InputError(
                f"the drafter taps layer {wrong[0]}, but {self.info.name} has layers 0 to {len(self._layers) - 1}; "
                "use a drafter trained for this target."
            )

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        return SlotCache(self._shapes, num_rows, num_slots, self.info.dtype, self.info.device)

    @torch.inference_mode()
    def prefill(self, cache: SlotCache, row: int, tokens: Sequence[int], feature_layers: Sequence[int] = ()) -> Pass:
        assert tokens, "prefill needs a prompt"
        features: list[Tensor] = []
        for first in range(0, len(tokens), self.prefill_chunk):
            chunk = torch.tensor([tokens[first : first + self.prefill_chunk]], device=self.info.device)
            width = chunk.shape[1]
            steps = torch.arange(width, device=self.info.device)
            cache.open(row, 1, width)
            visible = (steps[:, None] >= steps)[None]
            step = self._forward(cache, chunk, steps[None], visible, feature_layers, last_only=True)
            cache.extend([width])
            if step.features is not None:
                features.append(step.features)
        return Pass(step.logits, torch.cat(features, 1) if features else None)

    @torch.inference_mode()
    def verify(self, cache: SlotCache, trees: TreeBatch, feature_layers: Sequence[int] = ()) -> Pass:
        cache.open(0, trees.tokens.shape[0], trees.tokens.shape[1])
        return self._forward(cache, trees.tokens, trees.depths, trees.visible, feature_layers, last_only=False)

    def _forward(
        self,
        cache: SlotCache,
        tokens: Int64[Tensor, "b m"],
        depths: Int64[Tensor, "b m"],
        visible: Bool[Tensor, "b m m"],
        feature_layers: Sequence[int],
        last_only: bool,
    ) -> Pass:
        self._tap(feature_layers)
        starts = torch.tensor(cache.starts, device=depths.device)
        masks = {
            kind: tree_mask(visible, depths, cache.starts, self.info.dtype, window)
            for kind, window in self._masks_by_type.items()
        }
        output = self.model(
            input_ids=tokens,
            position_ids=starts[:, None] + depths,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
            **{self._cache_argument: _SlotCacheView(cache)},
        )
        return Pass(output.logits, self._take_features(feature_layers))

    def _tap(self, layer_ids: Sequence[int]) -> None:
        """Hook layers that were never asked for before; a hook records only what it saw last."""
        for layer in set(layer_ids) - self._tapped:
            self._layers[layer].register_forward_hook(self._recorder(layer))
            self._tapped.add(layer)

    def _recorder(self, layer: int) -> Any:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            self._taps[layer] = output[0] if isinstance(output, tuple) else output

        return record

    def _take_features(self, layer_ids: Sequence[int]) -> Float[Tensor, "b n f"] | None:
        features = torch.cat([self._taps[i] for i in layer_ids], -1) if layer_ids else None
        self._taps.clear()
        return features

    @torch.inference_mode()
    def _probe_shapes(self) -> list[LayerShape]:
        probe = _ShapeProbe()
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.info.device)
        self.model(input_ids=ids, position_ids=ids, use_cache=True, **{self._cache_argument: probe})
        missing = set(range(self.info.num_layers)) - set(probe.shapes)
        if missing:
            raise UnsupportedModelError(
                f"{self.info.name} keeps no key/value cache for layer {min(missing)}, so a rejected token could "
                "not be rolled back; use a decoder in which every layer is attention."
            )
        return [probe.shapes[i] for i in range(self.info.num_layers)]


def _refuse_unsupported(model: PreTrainedModel, name: str) -> None:
    config = model.config
    if not hasattr(config, "num_hidden_layers"):
        raise UnsupportedModelError(
            f"{name} ({config.model_type}) is made of several models; give a checkpoint of its language model."
        )
    reason = None
    kinds = set(getattr(config, "layer_types", None) or ())
    parameters = inspect.signature(model.forward).parameters
    rope = getattr(config, "rope_parameters", None) or {}
    rope_types = {r.get("rope_type") for r in [rope, *rope.values()] if isinstance(r, dict)}
    if config.is_encoder_decoder:
        reason = "is an encoder-decoder model, and paceline serves decoder-only models"
    elif getattr(model, "_is_stateful", False) or kinds - {_FULL, _SLIDING}:
        other = ", ".join(sorted(kinds - {_FULL, _SLIDING})) or "a recurrent state"
        reason = f"has layers ({other}) whose state cannot be rolled back after a rejected token"
    elif "position_ids" not in parameters:
        reason = "takes no position ids, so the nodes of a tree cannot be placed at their depths"
    elif rope_types & {"dynamic", "longrope"}:
        reason = "scales its rotary embedding by the longest sequence of a batch, so neighbours would change a text"
    if reason:
        raise UnsupportedModelError(f"{name} ({config.model_type}) {reason}; choose another target.")


def _cache_argument(model: PreTrainedModel) -> str:
    """The name of the cache argument, which transformers is renaming from `past_key_values` to `cache`."""
    parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def _attention_windows(config: Any) -> dict[str, int | None]:
    """The kinds of attention layer of a model, each with its window (None: unlimited)."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [_FULL if window is None or not getattr(config, "use_sliding_window", True) else _SLIDING]
    return {kind: window if kind == _SLIDING else None for kind in sorted(set(kinds))}


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The stack of decoder layers: the one module list whose length is the number of layers."""
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == model.config.num_hidden_layers:
            return module
    raise UnsupportedModelError(f"{model.config.model_type} has no list of decoder layers to take features from.")


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    for config in (model.generation_config, model.config):
        eos = getattr(config, "eos_token_id", None)
        if eos is not None:
            return tuple(eos) if isinstance(eos, list) else (int(eos),)
    return ()


def _weight(module: Any) -> Tensor:
    return module.weight.detach()
