"""The two forms of the network are one: whole texts at once, and pieces over a cache."""

import pytest
import torch

from paceline.drafters.base import DraftRequest
from paceline.drafters.specblock import SpecBlockDrafter, SpecBlockTreeConfig
from paceline.learning.unrolled import UnrolledBatch, unrolled
from paceline.metrics import StageClock
from paceline.models.specblock import rank_statistics
from paceline.tree.guessed import Start
from tiny_specblock import SIZES, VOCABULARY, tiny_specblock

SLOTS, WIDTH = SIZES["num_slots"], 64


def text(length, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (length,), generator=generator)
    return tokens, torch.randn(length, WIDTH, generator=generator, dtype=torch.float64)


def trained_form(network, tokens, features, anchor, slots):
    """Hidden states of the blocks after an anchor, the later ones from these slots: [M, K, H]."""
    nothing = torch.zeros(1)
    batch = UnrolledBatch(
        features[None],
        tokens[None],
        torch.tensor([[anchor]]),
        torch.tensor(slots, dtype=torch.int64)[None, None],
        nothing,
        nothing,
        nothing,
    )
    return unrolled(network, batch)[0, 0]


def served_form(drafter, tokens, features, anchor, slots, pieces, others=()):
    """The same by the drafter, whose row reads the features in pieces, beside other texts in the batch."""
    texts = [(tokens, features, anchor), *others]
    state = drafter.new_state(len(texts), 64, torch.device("cpu"))
    read = 0
    for end in (*pieces, anchor):
        requests = []
        for row, (its_tokens, its_features, its_anchor) in enumerate(texts):
            start, stop = (min(place, its_anchor - len(texts) + row) for place in (read, end))
            if end == anchor:
                stop = its_anchor
            drafter.observe(state, row, its_features[None, start:stop], [stop - start])
            requests.append(DraftRequest(its_tokens[: stop + 1].tolist(), 7, 9, 20))
        read = end
        blocks = drafter._first(state, requests, StageClock())
    place = anchor
    kept = state.cache.lengths[:]
    for number, slot in enumerate(slots):
        place += 1 + slot
        starts = [[Start(0, int(tokens[place]), number, slot)], *([] for _ in others)]
        blocks = drafter._later(state.cache, blocks, starts)
    state.cache.lengths[:] = kept
    return blocks.hidden[0]


@pytest.mark.parametrize(
    ("changes", "slots", "pieces"),
    [
        ({}, [], ()),
        ({}, [0], (4,)),
        ({}, [2, 0], (1, 6)),
        ({"shifts": False}, [1, 2], (1, 6)),
        ({"inherits": False}, [1, 2], (4,)),
        ({"num_hidden_layers": 3}, [1, 2], ()),
    ],
)
def test_what_learns_and_what_serves_give_the_same_hidden_states(changes, slots, pieces):
    network = tiny_specblock(**changes).double()
    drafter = SpecBlockDrafter(network, SpecBlockTreeConfig(num_blocks=3, num_starts=2))
    tokens, features = text(20, 1)
    with torch.inference_mode():
        expected = trained_form(network, tokens, features, 9, slots)
        found = served_form(drafter, tokens, features, 9, slots, pieces)
    torch.testing.assert_close(found, expected)


def test_texts_of_other_lengths_beside_it_change_nothing():
    network = tiny_specblock().double()
    drafter = SpecBlockDrafter(network, SpecBlockTreeConfig(num_blocks=3, num_starts=2))
    tokens, features = text(20, 1)
    others = [(*text(20, 2), 13), (*text(20, 3), 6)]
    with torch.inference_mode():
        expected = trained_form(network, tokens, features, 9, [1, 2])
        found = served_form(drafter, tokens, features, 9, [1, 2], (), others)
    torch.testing.assert_close(found, expected)


def gradients(slot, number, slots=(1,)):
    """Which features and tokens a slot of a block depends on."""
    network = tiny_specblock().double()
    tokens, features = text(14, 4)
    features.requires_grad_()
    embeddings = []

    def embed(ids):
        rows = torch.nn.functional.one_hot(ids, VOCABULARY).double().requires_grad_()
        embeddings.append(rows)
        return rows @ network.embed_tokens.weight

    network.embed = embed
    trained_form(network, tokens, features, 6, list(slots))[number, slot].sum().backward()
    reads = [embedded.grad.abs().sum(-1)[0] > 0 if embedded.grad is not None else None for embedded in embeddings]
    return (features.grad.abs().sum(-1) > 0).tolist(), [r.tolist() if r is not None else None for r in reads]


def test_a_block_sees_features_before_its_anchor_and_tokens_up_to_it():
    features, tokens = gradients(slot=2, number=0)
    assert features == [t < 6 for t in range(14)]
    assert tokens[0] == [t < 6 for t in range(13)]  # of which row t embeds token t + 1: up to the anchor, 6


def test_a_later_block_sees_in_addition_the_token_it_starts_from():
    features, tokens = gradients(slot=0, number=1)
    assert features == [t < 6 for t in range(14)]
    assert tokens[0] == [t < 6 for t in range(13)] and tokens[1] == [True]


def test_slots_depend_on_those_before_them_and_on_none_after():
    tokens, features = text(14, 4)
    network, changed = tiny_specblock().double(), tiny_specblock().double()
    with torch.no_grad():
        changed.input_layer.position_queries.weight[1] += 1.0
    for anchor, same in ((1, [True, False, False]), (6, [False] * 3)):  # all slots of earlier positions are seen
        found = (trained_form(each, tokens, features, anchor, [])[0] for each in (network, changed))
        assert torch.isclose(*found).all(-1).tolist() == same


def test_the_rank_head_sees_the_ten_best_log_probs_their_leads_the_top_probability_and_the_entropy():
    log_probs = torch.randn(2, VOCABULARY).log_softmax(-1)
    top = log_probs.topk(10).values
    entropy = torch.distributions.Categorical(logits=log_probs).entropy()
    found = rank_statistics(top, entropy)
    assert found.shape == (2, 15)
    torch.testing.assert_close(found[:, :10], top)
    torch.testing.assert_close(found[:, 10:13], torch.stack([top[:, 0] - top[:, i] for i in (1, 2, 4)], -1))
    torch.testing.assert_close(found[:, 13], top[:, 0].exp())
    torch.testing.assert_close(found[:, 14], entropy)


def test_nothing_of_the_rank_loss_reaches_the_layers():
    network = tiny_specblock()
    hidden = torch.randn(4, 32, requires_grad=True)
    network.rank_logits(hidden, torch.randn(4, 15)).sum().backward()
    assert hidden.grad is None or not hidden.grad.any()
    assert network.rank_head[0].weight.grad.any() and network.norm.weight.grad is None
