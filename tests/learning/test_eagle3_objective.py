"""EAGLE-3's loss against the plain formula it stands for."""

import pytest
import torch

from paceline.errors import InputError
from paceline.learning.conversation import Conversation
from paceline.learning.eagle3 import Eagle3Objective
from paceline.learning.eagle3_loss import Eagle3LossConfig
from paceline.learning.unrolled import build_batch, unrolled
from tiny_eagle3 import SIZES, tiny_eagle3


def conversations(count=2, length=14):
    found = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(SIZES["vocab_size"], (length,), generator=generator)
        top = torch.stack([torch.randperm(SIZES["vocab_size"], generator=generator)[:4] for _ in range(length)])
        log_probs = torch.randn(length, 4, generator=generator).log_softmax(-1).half()
        features = torch.randn(length, 64, generator=generator).bfloat16()
        found.append(Conversation(tokens.int(), 3, features, top.int(), log_probs))
    return found


@pytest.mark.parametrize("soft", [0.0, 1.0])
def test_the_loss_is_the_decayed_mean_over_steps_of_the_cross_entropy(soft):
    network = tiny_eagle3(draft_vocab_size=40)
    draft_ids = network.target_to_draft(torch.arange(network.vocab_size))
    objective = Eagle3Objective(network, draft_ids, Eagle3LossConfig(steps=3, soft=soft), 4)
    batch = build_batch(conversations(), 1, 3, 5, torch.Generator().manual_seed(1))
    log_probs = network.slot_logits(unrolled(network, batch)).log_softmax(-1).detach()
    total, weight = 0.0, 0.0
    for b, m, step in ((b, m, step) for b in range(2) for m in range(5) for step in range(3)):
        label = int(batch.labels[b, m, step, 0])
        if label < 0:
            continue
        ids = draft_ids[batch.top_ids[b, m, step, 0]]
        mass = torch.where(ids >= 0, batch.top_log_probs[b, m, step, 0].exp(), 0.0)
        if not soft:
            ids, mass = draft_ids[label][None], (draft_ids[label][None] >= 0).float()
        if mass.sum() > 0:
            entropy = -(mass / mass.sum() * log_probs[b, m, step, 0, ids.clamp(min=0)]).sum()
            total, weight = total + 0.8**step * float(entropy), weight + 0.8**step
    assert float(objective(batch).loss.detach()) == pytest.approx(total / weight, rel=1e-4)


def test_every_weight_of_the_network_learns():
    network = tiny_eagle3(draft_vocab_size=40)
    draft_ids = network.target_to_draft(torch.arange(network.vocab_size))
    batch = build_batch(conversations(), 1, 3, 5, torch.Generator().manual_seed(1))
    Eagle3Objective(network, draft_ids, Eagle3LossConfig(steps=3), 4)(batch).loss.backward()
    learning = {name for name, p in network.named_parameters() if p.grad is not None and p.grad.any()}
    assert learning == {name for name, p in network.named_parameters() if p.requires_grad}
    assert {"fc.weight", "midlayer.hidden_norm.weight", "norm.weight", "lm_head.weight"} <= learning


@pytest.mark.parametrize("bad", [{"steps": 0}, {"step_decay": 2.0}, {"soft": -1.0}])
def test_rewards_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match="must be"):
        Eagle3LossConfig(**bad)
