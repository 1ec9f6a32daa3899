"""Parallel heads: against the formulas written out, and what they see."""

import pytest
import torch
from torch.nn.functional import silu

from paceline.errors import InputError
from paceline.models.heads_config import HeadsConfig
from tiny_heads import SIZES, tiny_heads


def norm(x, module):
    return x / (x.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight


@pytest.mark.parametrize("layers", [1, 2])
def test_both_forms_are_what_the_formulas_say(layers):
    network = tiny_heads(num_layers=layers).double()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(50, (2, 12), generator=generator)
    features = torch.randn(2, 12, 64, generator=generator, dtype=torch.float64)
    anchors = torch.tensor([[3, 7, 11], [1, 5, 0]])
    with torch.inference_mode():
        trained = network.training_forward(features, tokens, anchors)
        assert trained.shape == (2, 3, 4, 32)
        assert torch.equal(network.training_forward(features, tokens, anchors, 3), trained[:, :, :2])
        for row in range(2):
            for block, anchor in enumerate(anchors[row].tolist()):
                if anchor == 0:  # padding
                    continue
                state = norm(features[row, anchor - 1] @ network.fc.weight.T, network.hidden_norm)
                state = state + network.embed_tokens.weight[tokens[row, anchor]] @ network.token_proj.weight.T
                for index, head in enumerate(network.heads):
                    x = state
                    for layer in head:
                        x = x + silu(x @ layer.linear.weight.T + layer.linear.bias)
                    torch.testing.assert_close(trained[row, block, index], norm(x, network.norm))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_heads": 0}, "num_heads"),
        ({"num_layers": 0}, "num_layers"),
        ({"target_layer_ids": (1, 1)}, "target_layer_ids"),
        ({"target_layer_ids": (4,)}, "target_layer_ids"),
        ({"draft_vocab_size": 51}, "draft_vocab_size"),
        ({"target_hidden_size": 64}, "hidden_size"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(change, says):
    with pytest.raises(InputError, match=says):
        HeadsConfig(**{**SIZES, **change})
