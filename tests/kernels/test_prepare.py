import pytest
import torch
from torch import nn

from paceline.kernels import prepare_for_device
from paceline.kernels.packed_linear import PackedLinear, is_supported
from tiny_models import tiny_model

DTYPES = [d for d in (torch.float32, torch.bfloat16) if is_supported(d)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_a_packed_layer_equals_its_plain_twin(dtype, bias, rows):
    torch.manual_seed(0)
    plain = nn.Linear(37, 53, bias=bias).to(dtype)
    x = torch.randn(2, rows, 37, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(plain)(x), plain(x), atol=tolerance, rtol=tolerance)


def test_no_plain_linear_layer_of_a_float32_model_stays_and_its_logits_do():
    model = tiny_model("llama").float()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        before = model(ids).logits
        assert prepare_for_device(model) > 0
        after = model(ids).logits
    if is_supported(torch.float32):
        assert not any(type(m) is nn.Linear for m in model.modules())
    torch.testing.assert_close(before, after, atol=1e-4, rtol=1e-4)


def test_dtypes_that_cannot_be_packed_keep_their_plain_layers():
    model = tiny_model("llama").double()
    assert prepare_for_device(model) == 0
    assert any(type(m) is nn.Linear for m in model.modules())
