"""The DFlash network: what a block sees, and that its two forms are one function."""

import pytest
import torch
from torch import nn

from paceline.errors import InputError
from paceline.models.dflash import block_mask
from tiny_dflash import HIDDEN, VOCABULARY, target_weights, tiny_network

TOKENS = 20


@pytest.fixture
def network():
    network = tiny_network()
    network.attach(*target_weights())
    return network


@pytest.fixture
def rows():
    """Features and tokens of two sequences."""
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(2, TOKENS, 2 * HIDDEN, generator=generator)
    return features, torch.randint(VOCABULARY, (2, TOKENS), generator=generator)


def served(network, features, tokens, anchor, block_size):
    """The serving form for one sequence: hidden states of the drafted positions."""
    context = network.context(features[None, :anchor])
    positions = torch.arange(anchor)[None]
    kv = [layer.self_attn.context_kv(context, positions) for layer in network.layers]
    block = torch.full((1, block_size), network.config.mask_token_id)
    block[0, 0] = tokens[anchor]
    return network.block(network.embed(block), anchor + torch.arange(block_size)[None], kv)[0, 1:]


@pytest.mark.parametrize("block_size", [2, 4, 7])
def test_training_and_serving_forms_agree_at_any_block_size(network, rows, block_size):
    features, tokens = rows
    anchors = torch.tensor([[1, 6, 7, 19], [12, 3, 3, 0]])
    hidden = network.training_forward(features, tokens, anchors, block_size)
    assert hidden.shape == (2, 4, block_size - 1, HIDDEN)
    for b in range(2):
        for m in range(4):
            expected = served(network, features[b], tokens[b], int(anchors[b, m]), block_size)
            torch.testing.assert_close(hidden[b, m], expected, atol=1e-5, rtol=1e-5)


def test_a_masked_batch_of_blocks_equals_each_row_alone(network, rows):
    features, tokens = rows
    anchors = [4, 9]
    context = network.context(features[:, :9])
    kv = [layer.self_attn.context_kv(context, torch.arange(9)[None]) for layer in network.layers]
    block = torch.full((2, 4), network.config.mask_token_id)
    block[:, 0] = tokens[[0, 1], anchors]
    at = torch.tensor(anchors)
    visible = (torch.arange(9) < at[:, None])[:, None, None].expand(-1, 1, 4, -1)
    hidden = network.block(network.embed(block), at[:, None] + torch.arange(4), kv, visible)
    for b, anchor in enumerate(anchors):
        expected = served(network, features[b], tokens[b], anchor, 4)
        torch.testing.assert_close(hidden[b, 1:], expected, atol=1e-5, rtol=1e-5)


def test_features_at_and_after_the_anchor_are_never_seen_and_those_before_always(network, rows):
    features, tokens = rows
    anchors = torch.tensor([[8], [8]])
    before = network.training_forward(features, tokens, anchors)
    later = features.clone()
    later[:, 8:] = torch.randn_like(later[:, 8:]) * 100
    assert torch.equal(network.training_forward(later, tokens, anchors), before)
    for position in range(8):
        earlier = features.clone()
        earlier[:, position] += 1
        assert not torch.allclose(network.training_forward(earlier, tokens, anchors), before, atol=1e-6)


def test_tokens_other_than_the_anchor_are_never_seen(network, rows):
    features, tokens = rows
    anchors = torch.tensor([[8], [8]])
    before = network.training_forward(features, tokens, anchors)
    others = (tokens + 1) % VOCABULARY
    others[:, 8] = tokens[:, 8]
    assert torch.equal(network.training_forward(features, others, anchors), before)


def test_every_row_of_a_block_sees_every_other(network, rows):
    features, _ = rows
    context = network.context(features[:1, :6])
    kv = [layer.self_attn.context_kv(context, torch.arange(6)[None]) for layer in network.layers]
    embeds = network.embed(torch.tensor([[3, 5, 5, 5]])).detach().requires_grad_()
    hidden = network.block(embeds, torch.arange(6, 10)[None], kv)
    for row in range(4):
        (gradient,) = torch.autograd.grad(hidden[0, row].sum(), embeds, retain_graph=True)
        assert (gradient[0].abs().amax(-1) > 0).all()


def test_blocks_do_not_see_each_other(network, rows):
    features, tokens = rows
    alone = network.training_forward(features, tokens, torch.tensor([[9], [9]]))
    crowded = network.training_forward(features, tokens, torch.tensor([[2, 9, 10, 9], [9, 9, 8, 11]]))
    torch.testing.assert_close(crowded[0, 1], alone[0, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(crowded[1, 1], alone[1, 0], atol=1e-5, rtol=1e-5)


def test_block_mask_equals_a_loop_over_its_elements():
    anchors, num_context, size = torch.tensor([[0, 3, 3], [5, 1, 4]]), 6, 2
    mask = block_mask(anchors, num_context, size)
    assert mask.shape == (2, 1, 6, 12) and mask.dtype == torch.bool
    for b in range(2):
        for row in range(6):
            for column in range(12):
                if column < num_context:
                    expected = column < anchors[b, row // size]
                else:
                    expected = (column - num_context) // size == row // size
                assert bool(mask[b, 0, row, column]) == bool(expected)


@torch.no_grad()  # FlexAttention has no backward pass on a CPU
def test_sparse_attention_equals_the_dense_mask(network, rows):
    features, tokens = rows
    network.requires_grad_(False)
    anchors = torch.tensor([[0, 3, 9, 17], [5, 1, 12, 12]])
    dense = network.training_forward(features, tokens, anchors, sparse=False)
    sparse = network.training_forward(features, tokens, anchors, sparse=True)
    torch.testing.assert_close(sparse, dense, atol=1e-5, rtol=1e-5)
    moved = network.training_forward(features, tokens, anchors - 1 + (anchors == 0).long(), sparse=True)
    assert not torch.allclose(moved, dense)


def test_an_anchor_without_context_gives_numbers(network, rows):
    features, tokens = rows
    hidden = network.training_forward(features, tokens, torch.zeros(2, 1, dtype=torch.int64))
    assert hidden.isfinite().all()


def test_a_reduced_vocabulary_scores_the_rows_of_the_targets_head_that_it_names():
    embedding, head = target_weights()
    network = tiny_network(draft_vocab_size=6)
    ids = torch.tensor([2, 3, 11, 30, 31, 49])
    network.set_draft_vocabulary(ids)
    network.attach(embedding, head)
    hidden = torch.randn(3, HIDDEN)
    torch.testing.assert_close(network.draft_logits(hidden), (hidden @ head.T)[:, ids])
    assert network.draft_to_target(torch.arange(6)).tolist() == ids.tolist()
    assert network.d2t.tolist() == [2, 2, 9, 27, 27, 44]
    assert network.t2d.nonzero().flatten().tolist() == ids.tolist()
    assert network.target_to_draft(torch.tensor([[11, 12], [49, 2]])).tolist() == [[2, -1], [5, 0]]


def test_borrowed_weights_share_storage_are_frozen_and_stay_out_of_the_state():
    embedding, head = target_weights()
    network = tiny_network()
    names = set(network.state_dict())
    network.attach(embedding, head)
    assert set(network.state_dict()) == names
    assert network.embed_tokens.weight.data_ptr() == embedding.data_ptr()
    assert network.lm_head.weight.data_ptr() == head.data_ptr()
    assert {n for n, p in network.named_parameters() if not p.requires_grad} == {
        "embed_tokens.weight",
        "lm_head.weight",
    }
    network.load_state_dict(network.state_dict())
    network.to(torch.bfloat16)
    assert embedding.dtype == torch.float32


def test_own_embedding_and_head_are_kept_and_stored():
    network = tiny_network(has_embedding=True, has_head=True)
    own = network.lm_head.weight.clone()
    network.attach(*target_weights())
    assert torch.equal(network.lm_head.weight, own)
    assert {"embed_tokens.weight", "lm_head.weight"} <= set(network.state_dict())


def test_every_linear_layer_may_be_replaced_by_a_module_without_a_weight(network, rows):
    class Stand(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.product = lambda x: x @ linear.weight.detach().T

        def forward(self, x):
            return self.product(x)

    features, tokens = rows
    anchors = torch.tensor([[4], [9]])
    expected = network.draft_logits(network.training_forward(features, tokens, anchors))
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Stand(child))
    replaced = network.draft_logits(network.training_forward(features, tokens, anchors))
    torch.testing.assert_close(replaced, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"block_size": 1}, "block_size"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"target_layer_ids": ()}, "target_layer_ids"),
        ({"target_layer_ids": (0, 4)}, "target_layer_ids"),
        ({"target_layer_ids": (1, 1)}, "target_layer_ids"),
        ({"mask_token_id": 50}, "mask_token_id"),
        ({"draft_vocab_size": 51}, "draft_vocab_size"),
        ({"head_dim": 7}, "head dimensions"),
        ({"hidden_size": 0}, "hidden_size"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused_by_name(changes, word):
    with pytest.raises(InputError, match=word):
        tiny_network(**changes)
