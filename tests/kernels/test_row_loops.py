"""The compiled row loops equal PyTorch's operators, and a row's result is its own."""

import pytest
import torch

from paceline.kernels import openmp
from paceline.kernels.row_loops import rms_norm, rotate_, silu_product

pytestmark = pytest.mark.skipif(not openmp.is_available(), reason="no compiled loops on this machine")


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_rms_norm_equals_pytorchs(rows):
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 96) * 3, torch.randn(96)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (96,), weight, 1e-5))


def test_epsilon_counts():
    x = torch.full((1, 16), 1e-4)
    torch.testing.assert_close(rms_norm(x, torch.ones(16), 1e-2), torch.nn.functional.rms_norm(x, (16,), eps=1e-2))


def test_silu_product_equals_pytorchs_at_any_size_of_its_arguments():
    torch.manual_seed(0)
    gate_up = torch.randn(3, 64) * 30
    gate_up[0, :6] = torch.tensor([1000.0, -1000.0, -87.5, 88.5, 0.0, -0.0])
    gate, up = gate_up.chunk(2, 1)
    torch.testing.assert_close(silu_product(gate_up), torch.nn.functional.silu(gate) * up, atol=1e-6, rtol=1e-6)


def test_rotation_turns_the_given_heads_in_place_and_no_others():
    torch.manual_seed(0)
    x, cos, sin = torch.randn(5, 6, 16), torch.randn(5, 16), torch.randn(5, 16)
    found = x.clone()
    rotate_(found[:, :4], cos, sin)
    turned = torch.cat((-x[..., 8:], x[..., :8]), -1)
    torch.testing.assert_close(found[:, :4], (x * cos[:, None] + turned * sin[:, None])[:, :4])
    assert torch.equal(found[:, 4:], x[:, 4:])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_its_neighbours_bit_for_bit(threads):
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(33, 64)
        weight = torch.randn(64)
        for function in (lambda rows: rms_norm(rows, weight, 1e-6), silu_product):
            together = function(x)
            assert all(torch.equal(function(x[i : i + 3].contiguous()), together[i : i + 3]) for i in range(30))
    finally:
        torch.set_num_threads(before)
