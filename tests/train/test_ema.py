"""The moving average of the weights."""

import torch
from torch import nn

from paceline.train.ema import WeightAverage


def test_the_average_moves_towards_the_weights_and_early_on_faster():
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = WeightAverage(layer, 0.9)
    nn.init.ones_(layer.weight)
    average.update(0)
    assert torch.allclose(average.weights["weight"], torch.tensor(0.9))
    average.update(10_000)
    assert torch.allclose(average.weights["weight"], torch.tensor(0.91))


def test_the_module_holds_the_average_inside_the_with_and_its_own_weights_after_it():
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = WeightAverage(layer, 0.9)
    nn.init.ones_(layer.weight)
    with average.applied():
        assert (layer.weight == 0).all()
    assert (layer.weight == 1).all() and (average.weights["weight"] == 0).all()


def test_frozen_weights_are_not_averaged():
    layer = nn.Linear(2, 1)
    layer.bias.requires_grad_(False)
    assert list(WeightAverage(layer, 0.9).weights) == ["weight"]
