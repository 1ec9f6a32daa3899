"""A target is exact where a token's logits do not depend on what else is in the pass."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from paceline.errors import UnsupportedModelError
from paceline.kernels import panel_linear, prepare_for_device
from paceline.target.exact import require_exact
from paceline.target.hugging_face import HuggingFaceTarget
from tiny_models import tiny_model

EXACT_HERE = panel_linear.is_supported(nn.Linear(16, 16))


def target(dtype):
    found = HuggingFaceTarget(tiny_model("qwen3", vocab_size=48, head_dim=16, hidden_size=64).to(dtype), "tiny")
    prepare_for_device(found.model)
    return found


@pytest.mark.skipif(not EXACT_HERE, reason="the products of this processor are not ours")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prepared_targets_are_exact(dtype):
    require_exact(target(dtype))


def test_a_target_whose_rounding_depends_on_the_width_of_the_pass_is_refused(monkeypatch):
    inexact = target(torch.bfloat16)
    right = inexact.verify

    def verify(cache, trees, feature_layers=()):
        result = right(cache, trees, feature_layers)
        return replace(result, logits=result.logits + 0.125 * (trees.tokens.shape[1] > 1))

    monkeypatch.setattr(inexact, "verify", verify)
    with pytest.raises(UnsupportedModelError, match=r"tiny in bfloat16 on cpu rounds .* use float32"):
        require_exact(inexact)
