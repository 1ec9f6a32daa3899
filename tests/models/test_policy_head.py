"""The predictor of the block size."""

import pytest
import torch
from torch.nn import functional as F

from paceline.errors import InputError
from paceline.models.policy_head import PolicyHead, PolicyHeadConfig

SIZES = (6, 7, 8, 9, 10)


def test_the_defaults_are_the_papers():
    head = PolicyHead(PolicyHeadConfig(num_inputs=30, block_sizes=SIZES))
    assert {name: tuple(w.shape) for name, w in head.named_parameters()} == {
        "first.weight": (2048, 30),
        "first.bias": (2048,),
        "hidden.0.weight": (2048, 2048),
        "hidden.0.bias": (2048,),
        "last.weight": (5, 2048),
        "last.bias": (5,),
    }
    assert head.config.dropout == 0.2 and head.config.inputs == "logits"


def test_the_second_layer_is_residual_and_nothing_is_dropped_in_use():
    head = PolicyHead(PolicyHeadConfig(num_inputs=4, block_sizes=SIZES, width=8)).eval()
    x = torch.randn(3, 4)
    first = F.relu(F.linear(x, head.first.weight, head.first.bias))
    second = first + F.relu(F.linear(first, head.hidden[0].weight, head.hidden[0].bias))
    assert torch.allclose(head(x), F.linear(second, head.last.weight, head.last.bias))


@pytest.mark.parametrize(
    ("inputs", "width", "expected"),
    [
        ("logits", 4, [[1.0, 3.0, -2.0, 0.5]]),
        ("top_k", 2, [[3.0, 1.0]]),
        ("features", 3, [[7.0, 8.0, 9.0]]),
        ("last_hidden", 2, [[5.0, 6.0]]),
    ],
)
def test_what_is_read_of_a_prompt(inputs, width, expected):
    head = PolicyHead(PolicyHeadConfig(num_inputs=width, block_sizes=SIZES, inputs=inputs, width=4))
    logits, features = torch.tensor([[1.0, 3.0, -2.0, 0.5]]), torch.tensor([[7.0, 8.0, 9.0]])
    assert head.prepare(logits, features, torch.tensor([[5.0, 6.0]])).tolist() == expected


def test_softmax_is_read_as_probabilities():
    head = PolicyHead(PolicyHeadConfig(num_inputs=4, block_sizes=SIZES, inputs="softmax", width=4))
    logits = torch.tensor([[1.0, 3.0, -2.0, 0.5]])
    assert torch.equal(head.prepare(logits, None), logits.softmax(-1))


def test_the_choice_is_the_size_of_the_highest_score():
    head = PolicyHead(PolicyHeadConfig(num_inputs=4, block_sizes=SIZES, width=4)).eval()
    for parameter in head.parameters():
        parameter.data.zero_()
    head.last.bias.data[3] = 1.0
    assert head.choose(torch.randn(4), None) == 9


def test_inputs_of_another_width_or_kind_are_refused():
    head = PolicyHead(PolicyHeadConfig(num_inputs=4, block_sizes=SIZES, width=4))
    with pytest.raises(InputError, match="reads 4 logits, but 5 came"):
        head.prepare(torch.zeros(1, 5), None)
    head = PolicyHead(PolicyHeadConfig(num_inputs=4, block_sizes=SIZES, width=4, inputs="features"))
    with pytest.raises(InputError, match="there are none with this drafter"):
        head.prepare(torch.zeros(1, 5), None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"width": 0}, "width is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"block_sizes": (4,)}, "two or more"),
        ({"block_sizes": (8, 4)}, "ascending"),
    ],
)
def test_unusable_shapes_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        PolicyHeadConfig(**{"num_inputs": 4, "block_sizes": SIZES, **changes})
