"""Rotary embeddings against plain arithmetic and against transformers."""

import math

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import LlamaConfig

from paceline.errors import InputError
from paceline.models.rope import (
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RotaryEmbedding,
    frequencies,
    rotate,
)

CPU = torch.device("cpu")


def turned_by_hand(vector: list[float], position: int, theta: float, dims: int) -> list[float]:
    """Each pair (j, j + dims/2) as a complex number times exp(i * position * theta^(-2j/dims))."""
    result, half = list(vector), dims // 2
    for j in range(half):
        angle = position * theta ** (-2 * j / dims)
        x, y = vector[j], vector[j + half]
        result[j] = x * math.cos(angle) - y * math.sin(angle)
        result[j + half] = y * math.cos(angle) + x * math.sin(angle)
    return result


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_rotation_equals_a_per_element_reference_and_leaves_the_other_dimensions_alone(factor):
    torch.manual_seed(0)
    config = RopeConfig(theta=500.0, partial_rotary_factor=factor)
    positions = torch.tensor([[0, 1, 7], [3, 40, 211]])
    heads = torch.randn(2, 3, 3, 8)
    turned = rotate(heads, RotaryEmbedding(config, 8)(positions))
    for b in range(2):
        for h in range(3):
            for n in range(3):
                expected = turned_by_hand(heads[b, h, n].tolist(), int(positions[b, n]), 500.0, int(8 * factor))
                torch.testing.assert_close(turned[b, h, n], torch.tensor(expected), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("scaling", "keys"),
    [
        (
            Llama3Scaling(8.0, 1.0, 4.0, 8192),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        (LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    ],
    ids=["llama3", "linear"],
)
def test_scaled_frequencies_equal_those_of_transformers(scaling, keys):
    theirs = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 500_000.0, **keys},
    )
    expected, attention_scale = ROPE_INIT_FUNCTIONS[keys["rope_type"]](theirs, CPU)
    assert attention_scale == 1.0
    ours = frequencies(RopeConfig(theta=500_000.0, scaling=scaling), 128, CPU)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert not torch.allclose(ours, frequencies(RopeConfig(theta=500_000.0), 128, CPU))


def test_frequencies_stay_float32_when_the_network_changes_its_dtype():
    rope = RotaryEmbedding(RopeConfig(), 64)
    before = rope.frequencies.clone()
    rope.to(torch.bfloat16)
    assert rope.frequencies.dtype == torch.float32
    assert torch.equal(rope.frequencies, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RopeConfig(theta=0.0),
        lambda: RopeConfig(partial_rotary_factor=1.5),
        lambda: RopeConfig(partial_rotary_factor=0.25).rotary_dim(12),
        lambda: LinearScaling(-1.0),
        lambda: Llama3Scaling(8.0, 4.0, 1.0, 8192),
    ],
)
def test_values_that_make_no_rotation_are_refused(make):
    with pytest.raises(InputError):
        make()
