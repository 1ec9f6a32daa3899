"""How the weights move: the schedule, Muon's orthogonal updates, and who moves what."""

import pytest
import torch
from torch import nn

from paceline.errors import InputError
from paceline.train.config import OptimizerConfig
from paceline.train.muon import Muon, _by_gram, _directly, orthogonalise
from paceline.train.optimizer import build_optimizers, rate_factor, set_rate


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_rate_rises_to_its_peak_and_falls_to_its_floor(decay):
    config = OptimizerConfig(warmup_steps=5, floor=0.1, decay=decay)
    rates = [rate_factor(config, step, 50) for step in range(51)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[5] == pytest.approx(1.0) and rates[50] == pytest.approx(0.1)


@pytest.mark.parametrize("shape", [(6, 30), (30, 6), (8, 8), (8, 12)])
def test_orthogonalised_matrices_have_singular_values_near_one_and_the_same_singular_vectors(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    turned = u.T @ orthogonalise(matrix) @ v.T
    assert (turned.diagonal() > 0.6).all() and (turned.diagonal() < 1.3).all()
    assert (turned - turned.diagonal().diag()).abs().max() < 1e-3


def test_iterating_the_gram_matrix_gives_what_iterating_the_matrix_gives():
    generator = torch.Generator().manual_seed(1)
    low_rank = torch.randn(20, 3, generator=generator) @ torch.randn(3, 70, generator=generator)
    x = low_rank + 1e-3 * torch.randn(20, 70, generator=generator)
    x = x / x.norm()
    torch.testing.assert_close(_by_gram(x), _directly(x.double()).float(), atol=2e-3, rtol=0)


def test_muon_moves_a_matrix_by_updates_of_adams_size():
    matrix = nn.Parameter(torch.zeros(40, 90))
    matrix.grad = torch.randn(40, 90, generator=torch.Generator().manual_seed(2)) * 1e-4
    Muon([matrix], lr=0.01, momentum=0.9, weight_decay=0.0).step()
    assert float(matrix.detach().square().mean().sqrt()) == pytest.approx(0.2 * 0.01, rel=0.15)


def test_matrices_go_to_muon_and_vectors_and_embeddings_to_adamw():
    network = nn.ModuleDict({"fc": nn.Linear(4, 3), "embed_tokens": nn.Embedding(5, 4), "frozen": nn.Linear(2, 2)})
    network["frozen"].requires_grad_(False)
    muon, adamw = build_optimizers(network, OptimizerConfig())
    owned = [{id(p) for g in o.param_groups for p in g["params"]} for o in (muon, adamw)]
    assert owned[0] == {id(network["fc"].weight)}
    assert owned[1] == {id(network["fc"].bias), id(network["embed_tokens"].weight)}
    assert len(build_optimizers(network, OptimizerConfig(kind="adamw"))) == 1


def test_the_rate_reaches_every_group():
    optimizers = build_optimizers(nn.Linear(4, 3), OptimizerConfig())
    set_rate(optimizers, 0.123)
    assert {g["lr"] for o in optimizers for g in o.param_groups} == {0.123}


@pytest.mark.parametrize("wrong", [{"learning_rate": 0.0}, {"clip": -1.0}, {"warmup_steps": -1}, {"floor": 1.5}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        OptimizerConfig(**wrong)
