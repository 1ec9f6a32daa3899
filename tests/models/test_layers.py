"""The shared layers against formulas written out."""

import torch

from paceline.models.layers import BlockAttention, RMSNorm, SwiGLU
from paceline.models.rope import RopeConfig, RotaryEmbedding, rotate


def test_rms_norm_divides_by_the_root_mean_square():
    torch.manual_seed(0)
    norm = RMSNorm(6, eps=1e-5)
    norm.weight.data.uniform_(0.5, 2)
    x = torch.randn(3, 6)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected)


def test_swiglu_is_its_formula():
    torch.manual_seed(0)
    mlp, x = SwiGLU(4, 6), torch.randn(2, 4)
    gate, up, down = (p.weight for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    gated = x @ gate.T
    torch.testing.assert_close(mlp(x), (gated * gated.sigmoid() * (x @ up.T)) @ down.T)


def test_attention_equals_a_loop_over_heads_rows_and_keys():
    torch.manual_seed(0)
    heads, groups, d, t, s = 4, 2, 6, 5, 3
    rope = RotaryEmbedding(RopeConfig(), d)
    attention = BlockAttention(8, heads, groups, d, 1e-6, rope)
    attention.q_norm.weight.data.uniform_(0.5, 2)
    attention.k_norm.weight.data.uniform_(0.5, 2)
    context, block = torch.randn(1, t, 8), torch.randn(1, s, 8)
    context_at, block_at = torch.arange(t)[None], torch.arange(t, t + s)[None]
    visible = torch.rand(1, 1, s, t + s) < 0.6
    visible[..., -1] = True
    kv = attention.context_kv(context, context_at)
    result = attention(block, rope(block_at), kv, visible)

    everything, at = torch.cat((context, block), 1), torch.cat((context_at, block_at), 1)
    q = rotate(attention.q_norm(attention.q_proj(block).view(1, s, heads, d)).transpose(1, 2), rope(block_at))
    k = rotate(attention.k_norm(attention.k_proj(everything).view(1, t + s, groups, d)).transpose(1, 2), rope(at))
    v = attention.v_proj(everything).view(1, t + s, groups, d).transpose(1, 2)
    rows = torch.zeros(1, s, heads * d)
    for h in range(heads):
        group = h // (heads // groups)
        for i in range(s):
            seen = [j for j in range(t + s) if visible[0, 0, i, j]]
            scores = torch.stack([q[0, h, i] @ k[0, group, j] / d**0.5 for j in seen]).softmax(0)
            mixed = sum(score * v[0, group, j] for score, j in zip(scores, seen, strict=True))
            rows[0, i, h * d : (h + 1) * d] = mixed
    torch.testing.assert_close(result, attention.o_proj(rows), atol=1e-5, rtol=1e-5)
