"""Twins of whole decoder modules, for hosts: their products fused, the small operations between them in one pass each.

They take the place of modules that are known by name, here and in `transformers`: the arithmetic is the module's own,
in float32 inside, and a row's result does not depend on how many rows go with it, bit for bit, if that is so of the
linear layers.

Letters: b rows, n tokens, h hidden, g query heads, k key/value heads, t keys, d head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paceline.kernels.machine_code import LANES
from paceline.kernels.row_loops import rms_norm, rotate_, silu_product
from paceline.kernels.tree_attention import tree_attention

MakeLinear = Callable[[nn.Linear], nn.Module]


class RmsNormTwin(nn.Module):
    """RMSNorm: normalised in float32, rounded to the module's dtype, then scaled."""

    def __init__(self, weight: Float[Tensor, " h"], eps: float):
        super().__init__()
        self.eps, self._dtype = eps, weight.dtype
        self.weight = weight.detach().contiguous()
        self._scale = self.weight if weight.dtype == torch.float32 else torch.ones(len(weight))

    def forward(self, x: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        out = rms_norm(x.float().contiguous(), self._scale, self.eps)
        return out if self._dtype == torch.float32 else out.to(self._dtype) * self.weight


class GatedMlpTwin(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up as one product."""

    def __init__(self, mlp: Any, make_linear: MakeLinear):
        super().__init__()
        self._gate_up = make_linear(_side_by_side([mlp.gate_proj, mlp.up_proj]))
        self._down = make_linear(mlp.down_proj)

    def forward(self, x: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        gate_up = self._gate_up(x)
        return self._down(silu_product(gate_up.float()).to(x.dtype))


class AttentionTwin(nn.Module):
    """Causal self-attention with rotary positions, grouped heads and, where the module has them, norms per head."""

    def __init__(self, attention: Any, make_linear: MakeLinear):
        super().__init__()
        self.layer_idx, self.head_dim, self.scaling = attention.layer_idx, attention.head_dim, attention.scaling
        self.num_kv_heads = attention.k_proj.out_features // self.head_dim
        self.num_heads = attention.q_proj.out_features // self.head_dim
        self._projections = make_linear(_side_by_side([attention.q_proj, attention.k_proj, attention.v_proj]))
        self._out = make_linear(attention.o_proj)
        self.q_norm, self.k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)

    def forward(
        self,
        hidden_states: Float[Tensor, "b n h"],
        position_embeddings: tuple[Float[Tensor, "b n d"], Float[Tensor, "b n d"]],
        attention_mask: Float[Tensor, "b 1 n t"] | None = None,
        cache: Any = None,
        **unused: Any,
    ) -> tuple[Float[Tensor, "b n h"], None]:
        """As the module that it stands for; of the keywords, a cache under its older name is read."""
        cache = cache if cache is not None else unused.get("past_key_values")
        dtype, (num_rows, width) = hidden_states.dtype, hidden_states.shape[:2]
        heads = self._projections(hidden_states).view(num_rows, width, -1, self.head_dim).float()
        turned, keys = self.num_heads + self.num_kv_heads, slice(self.num_heads, self.num_heads + self.num_kv_heads)
        for norm, part in ((self.q_norm, slice(0, self.num_heads)), (self.k_norm, keys)):
            if norm is not None:
                heads[:, :, part] = norm(heads[:, :, part].to(dtype)).float()
        cos, sin = (t.expand(num_rows, -1, -1).reshape(-1, self.head_dim).float() for t in position_embeddings)
        rotate_(heads.flatten(0, 1)[:, :turned], cos, sin)
        seen = heads[:, :, keys].transpose(1, 2).to(dtype), heads[:, :, turned:].transpose(1, 2).to(dtype)
        if cache is not None:
            seen = cache.update(*seen, self.layer_idx)
        mask = _causal(width, seen[0].shape[2]) if attention_mask is None else attention_mask.float()
        mixed = tree_attention(heads[:, :, : self.num_heads], *seen, mask, self.scaling)
        return self._out(mixed.flatten(2).to(dtype)), None


def make_twin(module: Any, make_linear: MakeLinear) -> nn.Module | None:
    """The twin of a module on the CPU, or None where there is none that gives the same."""
    name = type(module).__name__
    if name in _NORMS and not isinstance(module, nn.RMSNorm):
        eps = getattr(module, _NORMS[name])
        return RmsNormTwin(module.weight, eps) if _fits([module.weight]) else None
    if name in _GATED_MLPS and type(getattr(module, "act_fn", nn.SiLU())).__name__ in ("SiLU", "SiLUActivation"):
        linears = [module.gate_proj, module.up_proj, module.down_proj]
        return GatedMlpTwin(module, make_linear) if _are_plain(linears) else None
    if name in _ATTENTIONS:
        linears = [module.q_proj, module.k_proj, module.v_proj, module.o_proj]
        fits = _are_plain(linears) and module.head_dim % LANES == 0
        return AttentionTwin(module, make_linear) if fits else None
    return None


# The names of RMSNorm modules, with that of their epsilon; of gated MLPs; of attention modules.
_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe")
_NORMS = {f"{family}RMSNorm": "variance_epsilon" for family in _FAMILIES} | {"RMSNorm": "eps"}
_GATED_MLPS = {f"{family}MLP" for family in _FAMILIES} | {"SwiGLU"}
_ATTENTIONS = {f"{family}Attention" for family in _FAMILIES}


def _fits(weights: Sequence[Tensor]) -> bool:
    return all(
        w.device.type == "cpu" and w.dtype in (torch.float32, torch.bfloat16) and w.shape[0] % LANES == 0
        for w in weights
    )


def _are_plain(linears: Sequence[Any]) -> bool:
    return all(type(linear) is nn.Linear for linear in linears) and _fits([linear.weight for linear in linears])


def _side_by_side(linears: Sequence[nn.Linear]) -> nn.Linear:
    """One layer whose outputs are those of several, in order."""
    outputs = sum(linear.out_features for linear in linears)
    fused = nn.Linear(linears[0].in_features, outputs, bias=linears[0].bias is not None, device="meta")
    fused.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), requires_grad=False)
    if linears[0].bias is not None:
        fused.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
    return fused


def _causal(width: int, span: int) -> Float[Tensor, "1 1 n t"]:
    hidden = torch.ones(width, span, dtype=torch.bool).triu(span - width + 1)
    return torch.zeros(1, 1, width, span).masked_fill_(hidden, torch.finfo(torch.float32).min)
