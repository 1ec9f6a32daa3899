"""Attention over a tree equals PyTorch's, and a query's result depends on the keys it sees alone."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from paceline.kernels import openmp
from paceline.kernels.tree_attention import tree_attention

pytestmark = pytest.mark.skipif(not openmp.is_available(), reason="no compiled loops on this machine")
HIDDEN = torch.finfo(torch.float32).min


def inputs(rows, width, heads, kv_heads, span, size, seed=0):
    """Strided as in use: queries beside keys and values, keys and values in a larger cache."""
    torch.manual_seed(seed)
    queries = torch.randn(rows, width, heads + 2 * kv_heads, size)[:, :, :heads]
    keys, values = (torch.randn(rows, kv_heads, span + 9, size)[:, :, :span] for _ in range(2))
    mask = torch.zeros(rows, 1, width, span).masked_fill_(torch.rand(rows, 1, width, span) < 0.4, HIDDEN)
    mask[..., 0] = 0
    return queries, keys, values, mask


def reference(queries, keys, values, mask, scale):
    attended = scaled_dot_product_attention(
        queries.transpose(1, 2).double(), keys.double(), values.double(), mask.double(), scale=scale, enable_gqa=True
    )
    return attended.transpose(1, 2).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 9, 3, 213, 64), (2, 7, 8, 4, 37, 32), (3, 15, 4, 4, 5, 16), (1, 40, 6, 2, 100, 48), (1, 1, 1, 1, 1, 16)],
)
def test_it_equals_pytorchs_attention(shape, dtype):
    queries, keys, values, mask = inputs(*shape)
    keys, values = keys.to(dtype), values.to(dtype)
    found = tree_attention(queries, keys, values, mask, 0.2)
    torch.testing.assert_close(found, reference(queries, keys, values, mask, 0.2), atol=2e-6, rtol=2e-6)


def test_large_scores_do_not_overflow():
    queries, keys, values, mask = inputs(1, 3, 2, 1, 20, 16)
    found = tree_attention(queries * 300, keys * 10, values, mask, 1.0)
    torch.testing.assert_close(found, reference(queries * 300, keys * 10, values, mask, 1.0), atol=1e-4, rtol=1e-4)


def test_a_mask_that_only_lowers_a_score_lowers_it():
    queries, keys, values, _ = inputs(1, 2, 2, 2, 6, 16)
    mask = -torch.rand(1, 1, 2, 6)
    torch.testing.assert_close(
        tree_attention(queries, keys, values, mask, 0.25), reference(queries, keys, values, mask, 0.25)
    )


def test_a_query_does_not_depend_on_the_others_bit_for_bit():
    queries, keys, values, mask = inputs(2, 21, 6, 2, 50, 32)
    together = tree_attention(queries, keys, values, mask, 0.2)
    for row in range(2):
        for i in range(21):
            at = slice(row, row + 1), slice(i, i + 1)
            alone = tree_attention(queries[at], keys[at[0]], values[at[0]], mask[at[0], :, at[1]], 0.2)
            assert torch.equal(alone, together[at])


def test_hidden_keys_between_the_seen_ones_change_nothing_bit_for_bit():
    queries, keys, values, mask = inputs(1, 1, 4, 2, 61, 16)
    seen = mask[0, 0, 0] == 0
    compact = tree_attention(queries, keys[:, :, seen], values[:, :, seen], mask[..., seen], 0.2)
    assert torch.equal(tree_attention(queries, keys, values, mask, 0.2), compact)
