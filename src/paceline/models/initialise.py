"""Starting weights for a draft network, taken from layers of its target.

Letters: h hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paceline.models.dflash import DFlashNetwork
from paceline.models.eagle3 import Eagle3Network
from paceline.models.heads import HeadsNetwork
from paceline.models.specblock import SpecBlockNetwork

ContextStart = Literal["last", "mean"]


@torch.no_grad()
def initialise_from_target(
    network: DFlashNetwork,
    layer_states: Sequence[Mapping[str, Tensor]],
    final_norm: Float[Tensor, " h"] | None = None,
    context: ContextStart = "last",
) -> list[str]:
    """Copy target layers into the draft layers, and let the context start as taps of the target.

    Args:
        layer_states: the `state_dict` of one target decoder layer for each draft layer, in Llama's and
            Qwen3's names; a weight that is absent or of another shape keeps its random start.
        final_norm: weight of the target's final norm.
        context: `fc` starts as the last tap, or as the mean of all taps. A draft layer projects the context
            without its `input_layernorm`, so `hidden_norm` starts as the mean of those that were copied.

    Returns:
        The names of the weights of `network` that were set.
    """
    done = _copy_layers(network, layer_states, final_norm)
    copied = [i for i in range(len(network.layers)) if f"layers.{i}.input_layernorm.weight" in done]
    if copied:
        norms = torch.stack([network.layers[i].input_layernorm.weight.data for i in copied])
        network.hidden_norm.weight.copy_(norms.mean(0))
        done.append("hidden_norm.weight")
    if network.config.target_hidden_size == network.config.hidden_size:
        taps = len(network.config.target_layer_ids)
        network.fc.weight.copy_(_tap_selector(taps, network.config.hidden_size, context))
        done.append("fc.weight")
    return done


@torch.no_grad()
def initialise_specblock(
    network: SpecBlockNetwork,
    layer_states: Sequence[Mapping[str, Tensor]],
    final_norm: Float[Tensor, " h"] | None = None,
) -> list[str]:
    """Copy target layers into the draft layers; the condition starts as the last tap, a row as the sum of condition,
    token and query, and a slot after a shift as itself. Arguments and result as in `initialise_from_target`."""
    done = _copy_layers(network, layer_states, final_norm)
    hidden = network.config.hidden_size
    identity = torch.eye(hidden)
    network.input_layer.condition_proj.weight.copy_(_tap_selector(len(network.config.target_layer_ids), hidden, "last"))
    network.input_layer.fuse.weight.copy_(torch.cat([identity] * 3, 1) / 3**0.5)
    for shift in network.shift_proj:
        assert isinstance(shift, nn.Linear), "they are linear maps"
        shift.weight.copy_(torch.cat([identity, torch.zeros_like(identity)], 1))
    shifts = [f"shift_proj.{i}.weight" for i in range(len(network.shift_proj))]
    return [*done, "input_layer.condition_proj.weight", "input_layer.fuse.weight", *shifts]


@torch.no_grad()
def initialise_eagle3(
    network: Eagle3Network, layer_state: Mapping[str, Tensor], final_norm: Float[Tensor, " h"] | None = None
) -> list[str]:
    """Copy a target layer into the draft layer; the state starts as the last tap. Of projections that read token and
    state, the part for the state is copied. Arguments and result as in `initialise_from_target`."""
    done, hidden = [], network.config.hidden_size
    reads_both = tuple(f"self_attn.{part}_proj.weight" for part in "qkv")
    for name, weight in network.midlayer.named_parameters():
        source = layer_state.get(name if name != "hidden_norm.weight" else "input_layernorm.weight")
        part = weight[:, hidden:] if name in reads_both else weight
        if source is not None and source.shape == part.shape:
            part.copy_(source)
            done.append(f"midlayer.{name}")
    if final_norm is not None and final_norm.shape == network.norm.weight.shape:
        network.norm.weight.copy_(final_norm)
        done.append("norm.weight")
    if network.config.target_hidden_size == hidden:
        network.fc.weight.copy_(_tap_selector(len(network.config.target_layer_ids), hidden, "last"))
        done.append("fc.weight")
    return done


@torch.no_grad()
def initialise_heads(network: HeadsNetwork, final_norm: Float[Tensor, " h"] | None = None) -> None:
    """The state starts as the last tap, residual layers as nothing, and the last norm as the target's."""
    config = network.config
    if config.target_hidden_size == config.hidden_size:
        network.fc.weight.copy_(_tap_selector(len(config.target_layer_ids), config.hidden_size, "last"))
    for name, parameter in network.heads.named_parameters():  # type: ignore[attr-defined]  # a list of modules
        if ".linear." in name:
            parameter.zero_()
    if final_norm is not None and final_norm.shape == network.norm.weight.shape:
        network.norm.weight.copy_(final_norm)


def _copy_layers(
    network: DFlashNetwork | SpecBlockNetwork,
    layer_states: Sequence[Mapping[str, Tensor]],
    final_norm: Float[Tensor, " h"] | None,
) -> list[str]:
    """Weights of the same name and shape, and the final norm."""
    assert len(layer_states) == len(network.layers), "one target layer for each draft layer"
    done: list[str] = []
    for index, (layer, state) in enumerate(zip(network.layers, layer_states, strict=True)):
        for name, weight in layer.named_parameters():
            if name in state and state[name].shape == weight.shape:
                weight.copy_(state[name])
                done.append(f"layers.{index}.{name}")
    if final_norm is not None and final_norm.shape == network.norm.weight.shape:
        network.norm.weight.copy_(final_norm)
        done.append("norm.weight")
    return done


def _tap_selector(taps: int, hidden: int, context: ContextStart) -> Float[Tensor, "h f"]:
    shares = torch.full((taps,), 1 / taps) if context == "mean" else torch.eye(taps)[-1]
    return torch.kron(shares[None], torch.eye(hidden))
