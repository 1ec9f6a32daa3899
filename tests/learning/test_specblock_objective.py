"""Labels of unrolled blocks, and the losses against the plain formulas they stand for."""

import pytest
import torch

from paceline.learning.conversation import Conversation
from paceline.learning.losses import valid_prefix_weights
from paceline.learning.specblock import SpecBlockObjective, rank_classes, rank_loss
from paceline.learning.specblock_loss import SpecBlockLossConfig
from paceline.learning.unrolled import build_batch, lay_out, unrolled
from tiny_dflash import VOCABULARY
from tiny_specblock import SIZES, tiny_specblock

SLOTS = SIZES["num_slots"]


def counting(length=12, response_start=3):
    """Token t is 10 + t; the distribution after token t is sure of 10 + t + 1."""
    tokens = 10 + torch.arange(length, dtype=torch.int32)
    top_ids = torch.stack([tokens + 1, tokens + 2], -1).int()
    top_log_probs = torch.tensor([-0.0, -20.0]).expand(length, -1).half()
    return Conversation(tokens, response_start, torch.randn(length, 64).bfloat16(), top_ids, top_log_probs)


def laid_out(conversations, anchors, slots):
    anchors, slots = torch.tensor(anchors), torch.tensor(slots)
    return lay_out(conversations, anchors, torch.ones_like(anchors, dtype=torch.bool), slots, SLOTS)


def test_a_block_is_labelled_with_the_tokens_after_its_anchor_and_a_later_one_after_the_slot_it_starts_from():
    batch = laid_out([counting()], [[4, 5]], [[[0, 2], [1, 0]]])
    assert batch.tokens[0, batch.anchors[0]].tolist() == [14, 15]
    first, second = batch.labels[0].tolist()
    assert first == [[15, 16, 17], [16, 17, 18], [19, 20, 21]]
    assert second == [[16, 17, 18], [18, 19, 20], [19, 20, 21]]
    assert torch.equal(batch.top_ids[..., 0], batch.labels)


def test_labels_past_the_end_and_of_blocks_that_only_fill_up_are_left_out():
    assert laid_out([counting()], [[9]], [[[1]]]).labels.tolist() == [[[[20, 21, -1], [-1, -1, -1]]]]
    batch = build_batch([counting(length=6)], SLOTS, 2, 4, torch.Generator())
    assert (batch.labels[0, 2:] == -1).all() and (batch.labels[0, :2, 0, 0] == torch.tensor([14, 15])).all()
    assert batch.slots.shape == (1, 4, 1) and int(batch.slots.min()) >= 0 and int(batch.slots.max()) < SLOTS


def test_one_block_alone_can_be_trained():
    objective = new_objective()
    batch = build_batch(random_conversations(), SLOTS, 1, 4, torch.Generator())
    assert batch.labels.shape == (2, 4, 1, SLOTS)
    assert bool(objective(batch).loss.isfinite())


def test_the_valid_prefix_is_where_all_slots_before_were_right():
    correct = torch.tensor([[True, True, False, True], [False, True, True, True]])
    weights = valid_prefix_weights(0.5)(torch.zeros(2, 4), correct)
    assert weights.tolist() == [[1, 0.5, 0.25, 0], [1, 0, 0, 0]]
    assert valid_prefix_weights(0.5, False)(torch.zeros(2, 4), correct).tolist() == [[1, 0.5, 0.25, 0.125]] * 2


def random_conversations(count=2):
    found = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        found.append(
            Conversation(
                torch.randint(VOCABULARY, (14 - seed,), generator=generator).int(),
                4,
                torch.randn(14 - seed, 64, generator=generator).bfloat16(),
                torch.randint(VOCABULARY, (14 - seed, 3), generator=generator).int(),
                torch.randn(14 - seed, 3, generator=generator).log_softmax(-1).half(),
            )
        )
    return found


def new_objective(network=None, **changes):
    network = network or tiny_specblock(draft_vocab_size=40)
    draft_ids = network.target_to_draft(torch.arange(VOCABULARY))
    return SpecBlockObjective(network, draft_ids, SpecBlockLossConfig(**changes), chunk_blocks=3)


@pytest.mark.parametrize("valid_prefix", [True, False])
def test_the_draft_loss_is_the_divergence_from_the_recorded_distribution_up_to_its_entropy(valid_prefix):
    objective = new_objective(valid_prefix=valid_prefix, rank=False)
    batch = build_batch(random_conversations(), SLOTS, 2, 5, torch.Generator().manual_seed(1))
    network, total, weight = objective.network, 0.0, 0.0
    log_probs = network.slot_logits(unrolled(network, batch)).log_softmax(-1).detach()
    for b, m, block in ((b, m, block) for b in range(2) for m in range(5) for block in range(2)):
        right = True
        for k in range(SLOTS):
            label = int(batch.labels[b, m, block, k])
            ids = objective.draft_ids[batch.top_ids[b, m, block, k]]
            mass = torch.where(ids >= 0, batch.top_log_probs[b, m, block, k].exp(), 0.0)
            if label >= 0 and mass.sum() > 0:
                w = 0.8**k * (right or not valid_prefix)
                entropy = -(mass / mass.sum() * log_probs[b, m, block, k, ids.clamp(min=0)]).sum()
                total, weight = total + w * float(entropy), weight + w
            right = right and label >= 0 and int(log_probs[b, m, block, k].argmax()) == int(objective.draft_ids[label])
    assert float(objective(batch).loss.detach()) == pytest.approx(total / weight, rel=1e-4)


def test_the_rank_loss_is_added_and_learns_of_the_rank_head_alone():
    batch = build_batch(random_conversations(), SLOTS, 2, 5, torch.Generator().manual_seed(1))
    network = tiny_specblock(draft_vocab_size=40)
    plain, ranked = new_objective(network, rank=False), new_objective(network, rank=True, rank_share=0.5)
    plain(batch).loss.backward()
    without = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    ranked(batch).loss.backward()
    for name, parameter in network.named_parameters():
        if name.startswith("rank_head"):
            assert name not in without and parameter.grad.any()
        elif parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, without[name])


def test_ranks_fall_into_the_papers_buckets_and_what_cannot_be_drafted_is_beyond_all():
    ranks = torch.tensor([1, 2, 4, 5, 10, 11, 500, 0])
    assert rank_classes(ranks).tolist() == [0, 1, 1, 2, 2, 3, 3, 3]


def test_a_bucket_too_low_costs_more_than_one_too_high_and_neighbours_less_than_strangers():
    config = SpecBlockLossConfig()
    truth, counts = torch.tensor([[1]]), torch.ones(1, 1)

    def cost(said):
        scores = torch.full((1, 1, 4), 0.0)
        scores[0, 0, said] = 3.0
        return float(rank_loss(scores, truth, counts, config))

    assert cost(1) < cost(2) < cost(0) and cost(2) < cost(3)


def test_rare_buckets_weigh_more_and_slots_that_do_not_count_weigh_nothing():
    config = SpecBlockLossConfig(smoothing=0.0, under_cost=0.0, over_cost=0.0)
    classes = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 3, 1]])
    counts = torch.tensor([[1.0] * 9 + [0.0]])
    scores = torch.zeros(1, 10, 4, requires_grad=True)
    rank_loss(scores, classes, counts, config).backward()
    weights = -scores.grad[0].gather(-1, classes[0][:, None])[:, 0]
    assert float(weights[9]) == 0 and float(weights[8] / weights[0]) == pytest.approx(8**0.5, rel=1e-4)
    assert float(rank_loss(scores, classes, torch.zeros(1, 10), config).detach()) == 0
