"""EAGLE-3's layer against the formulas written out, and its two forms against each other."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from paceline.drafters.base import DraftRequest
from paceline.drafters.eagle3 import Eagle3Drafter, Eagle3TreeConfig
from paceline.errors import InputError
from paceline.learning.unrolled import UnrolledBatch, unrolled
from paceline.metrics import StageClock
from paceline.models.eagle3_config import Eagle3Config
from paceline.models.rope import rotate
from paceline.tree.guessed import Start
from tiny_eagle3 import SIZES, tiny_eagle3

VOCABULARY, WIDTH = SIZES["vocab_size"], 64


def text(length, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (length,), generator=generator)
    return tokens, torch.randn(length, WIDTH, generator=generator, dtype=torch.float64)


def norm(x, module):
    return x / (x.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight


def by_hand(network, tokens, features, anchor, steps):
    """States [steps, H] of the chain after an anchor whose tokens are the text's, one full recomputation per step."""
    layer, size = network.midlayer, network.config.head_dim
    states = features[:anchor] @ network.fc.weight.T
    found = []
    for step in range(steps):
        rows = anchor + step
        embedded = norm(network.embed_tokens.weight[tokens[1 : rows + 1]], layer.input_layernorm)
        normed = norm(states, layer.hidden_norm)
        joined = torch.cat([embedded, normed], -1)
        heads = [
            (joined @ projection.weight.T).unflatten(-1, (-1, size)).transpose(0, 1)[None]
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        ]
        rotation = network.rope(torch.arange(rows))
        q, k, v = rotate(heads[0], rotation), rotate(heads[1], rotation), heads[2]
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]
        past = normed if layer.norm_before_residual else states
        after = past + attended.transpose(0, 1).flatten(1) @ layer.self_attn.o_proj.weight.T
        inner, mlp = norm(after, layer.post_attention_layernorm), layer.mlp
        after = after + (silu(inner @ mlp.gate_proj.weight.T) * (inner @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
        found.append(after[-1])
        states = torch.cat([states, after[-1:]])  # the next step starts from it
    return torch.stack(found)


def trained_form(network, tokens, features, anchor, steps):
    nothing = torch.zeros(1)
    slots = torch.zeros(1, 1, steps - 1, dtype=torch.int64)
    batch = UnrolledBatch(features[None], tokens[None], torch.tensor([[anchor]]), slots, nothing, nothing, nothing)
    return unrolled(network, batch)[0, 0, :, 0]


def served_form(network, tokens, features, anchor, steps, pieces=()):
    drafter = Eagle3Drafter(network, Eagle3TreeConfig(depth=steps, num_starts=2))
    state, read = drafter.new_state(1, 64, torch.device("cpu")), 0
    for end in (*pieces, anchor):
        drafter.observe(state, 0, features[None, read:end], [end - read])
        blocks = drafter._first(state, [DraftRequest(tokens[: end + 1].tolist(), 7, 9, 20)], StageClock())
        read = end
    for step in range(steps - 1):
        blocks = drafter._later(state.cache, blocks, [[Start(0, int(tokens[anchor + 1 + step]), step, 0)]])
    return blocks.hidden[0, :, 0]


@pytest.mark.parametrize("before", [False, True])
def test_both_forms_are_what_the_formulas_say(before):
    network = tiny_eagle3(norm_before_residual=before).double()
    tokens, features = text(20, 1)
    with torch.inference_mode():
        expected = by_hand(network, tokens, features, 9, 4)
        torch.testing.assert_close(trained_form(network, tokens, features, 9, 4), expected)
        torch.testing.assert_close(served_form(network, tokens, features, 9, 4, (1, 6)), expected)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"target_layer_ids": (1, 1)}, "target_layer_ids"),
        ({"target_layer_ids": ()}, "target_layer_ids"),
        ({"draft_vocab_size": VOCABULARY + 1}, "draft_vocab_size"),
        ({"target_hidden_size": 64}, "borrows the target's embedding"),
        ({"head_dim": 0}, "head_dim"),
    ],
)
def test_sizes_that_make_no_network_are_refused(change, says):
    with pytest.raises(InputError, match=says):
        Eagle3Config(**{**SIZES, **change})
