"""Every label, and every row of features, is the one that the paper means: nothing is off by one."""

import pytest
import torch

from paceline.learning.conversation import Conversation
from paceline.learning.dflash import DFlashObjective, build_batch, lay_out
from paceline.learning.losses import decayed_weights
from tiny_dflash import VOCABULARY, target_weights, tiny_network

BLOCK = 4


def counting(length=10, response_start=3):
    """Token t is 10 + t; the distribution after token t is sure of 10 + t + 1, its row of features is t."""
    tokens = 10 + torch.arange(length, dtype=torch.int32)
    top_ids = torch.stack([tokens + 1, tokens + 2], -1).int()
    top_log_probs = torch.tensor([-0.0, -20.0]).expand(length, -1).half()
    features = torch.arange(length, dtype=torch.bfloat16)[:, None].expand(-1, 64)
    return Conversation(tokens, response_start, features, top_ids, top_log_probs)


def laid_out(conversations, anchors):
    anchors = torch.tensor(anchors)
    return lay_out(conversations, anchors, torch.ones_like(anchors, dtype=torch.bool), BLOCK)


def test_position_k_of_a_block_is_labelled_with_the_token_k_after_its_anchor():
    batch = laid_out([counting()], [[3, 5]])
    assert batch.tokens[0, batch.anchors[0]].tolist() == [13, 15]
    assert batch.labels.tolist() == [[[14, 15, 16], [16, 17, 18]]]


def test_the_soft_label_of_a_position_is_sure_of_the_same_token_as_its_hard_label():
    batch = laid_out([counting()], [[3, 5]])
    assert torch.equal(batch.top_ids[..., 0], batch.labels)


def test_labels_past_the_end_are_left_out():
    batch = laid_out([counting(length=10)], [[7, 8]])
    assert batch.labels.tolist() == [[[18, 19, -1], [19, -1, -1]]]


def test_blocks_that_only_fill_up_have_no_labels():
    batch = build_batch([counting(length=6, response_start=3)], BLOCK, 5, torch.Generator())
    assert batch.anchors.tolist() == [[3, 4, 3, 3, 3]]
    assert (batch.labels[0, 2:] == -1).all() and (batch.labels[0, :2, 0] == torch.tensor([14, 15])).all()


def test_a_shorter_conversation_of_a_batch_is_labelled_by_its_own_end():
    batch = laid_out([counting(length=7), counting(length=10)], [[5], [5]])
    assert batch.labels.tolist() == [[[16, -1, -1]], [[16, 17, 18]]]
    assert batch.features[0, 7:].abs().sum() == 0 and batch.features[1, 9, 0] == 9


def new_objective(soft=0.5, **changes):
    network = tiny_network(block_size=BLOCK, **changes)
    network.attach(*target_weights())
    draft_ids = network.target_to_draft(torch.arange(VOCABULARY))
    return DFlashObjective(network, draft_ids, decayed_weights(4.0), soft, chunk_blocks=3)


def random_conversation(seed):
    generator = torch.Generator().manual_seed(seed)
    return Conversation(
        torch.randint(VOCABULARY, (12,), generator=generator).int(),
        4,
        torch.randn(12, 64, generator=generator).bfloat16(),
        torch.randint(VOCABULARY, (12, 3), generator=generator).int(),
        torch.randn(12, 3, generator=generator).log_softmax(-1).half(),
    )


def test_the_loss_of_a_block_sees_features_before_its_anchor_and_none_from_it_on():
    objective, batch = new_objective(), laid_out([random_conversation(0)], [[6]])
    batch.features.requires_grad_()
    objective(batch).loss.backward()
    seen = batch.features.grad[0].abs().sum(-1) > 0
    assert seen.tolist() == [t < 6 for t in range(12)]


@pytest.mark.parametrize("changes", [{}, {"draft_vocab_size": 30}])
def test_the_loss_is_the_weighted_cross_entropy_of_the_networks_own_logits(changes):
    objective, batch = new_objective(soft=0.0, **changes), laid_out([random_conversation(1)], [[5, 9]])
    network = objective.network
    hidden = network.training_forward(batch.features, batch.tokens, batch.anchors, BLOCK)
    log_probs = network.draft_logits(hidden).log_softmax(-1).detach()
    total = weight = 0.0
    for block in range(2):
        for k in range(BLOCK - 1):
            label = int(batch.labels[0, block, k])
            draft_id = -1 if label < 0 else int(objective.draft_ids[label])
            if draft_id >= 0:
                w = float(torch.exp(torch.tensor(-k / 4.0)))
                total, weight = total - w * float(log_probs[0, block, k, draft_id]), weight + w
    assert float(objective(batch).loss.detach()) == pytest.approx(total / weight, rel=1e-4)
