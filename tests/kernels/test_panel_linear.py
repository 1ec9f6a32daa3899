"""The panel product equals the plain one, and a row's result is its own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from paceline.kernels.panel_linear import PanelLinear, is_supported

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="the processor has no fused multiply-adds"
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def layer(inputs: int, outputs: int, bias: bool, dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(inputs + outputs)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 192), (33, 16), (1, 32), (1536, 576)])
def test_it_equals_the_plain_layer_for_any_number_of_rows(inputs, outputs, bias, dtype):
    plain = layer(inputs, outputs, bias, dtype)
    panels = PanelLinear(plain)
    for rows in [*range(14), 19, 64]:
        x = torch.randn(rows, inputs).to(dtype)
        expected = nn.functional.linear(x.double(), plain.weight.double(), None if not bias else plain.bias.double())
        found = panels(x)
        assert found.dtype == dtype and found.shape == (rows, outputs)
        torch.testing.assert_close(found.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_does_not_depend_on_its_neighbours_bit_for_bit(dtype):
    panels = PanelLinear(layer(576, 192, True, dtype))
    x = torch.randn(40, 576).to(dtype)
    together = panels(x)
    for first, last in [(0, 1), (1, 3), (3, 6), (6, 10), (10, 15), (15, 21), (21, 28), (28, 40)]:
        assert torch.equal(panels(x[first:last]), together[first:last])


def test_weights_that_bfloat16_holds_are_read_as_such_and_give_the_same_bit_for_bit():
    plain = layer(96, 64, True, torch.float32)
    plain.weight.data = plain.weight.bfloat16().float()
    halved = PanelLinear(plain)
    wide = layer(96, 80, False, torch.float32)  # 0.1 needs float32, so all weights stay
    wide.weight.data[:64], wide.weight.data[64:] = plain.weight, 0.1
    wide.bias = torch.nn.Parameter(torch.cat((plain.bias, torch.zeros(16))), requires_grad=False)
    kept = PanelLinear(wide)
    assert halved._panels.dtype == torch.bfloat16 and kept._panels.dtype == torch.float32
    x = torch.randn(9, 96)
    assert torch.equal(halved(x), kept(x)[:, :64])


def test_any_leading_shape_and_strides_are_taken():
    plain = layer(48, 64, True, torch.float32)
    panels = PanelLinear(plain)
    x = torch.randn(3, 48, 5).transpose(1, 2)
    torch.testing.assert_close(panels(x), plain(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(panels(x[0, 0]), plain(x[0, 0]), atol=1e-5, rtol=1e-5)


def test_two_threads_may_multiply_at_once():
    plain = layer(576, 1536, False, torch.float32)
    panels = PanelLinear(plain)
    inputs = [torch.randn(7, 576) for _ in range(60)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(panels, inputs))
    for x, y in zip(inputs, found, strict=True):
        torch.testing.assert_close(y, plain(x), atol=1e-4, rtol=1e-4)


def test_another_dtype_or_width_is_a_fault():
    panels = PanelLinear(layer(32, 16, False, torch.float32))
    with pytest.raises(AssertionError, match="does not fit"):
        panels(torch.zeros(1, 32, dtype=torch.bfloat16))
    with pytest.raises(AssertionError, match="does not fit"):
        panels(torch.zeros(1, 31))


def test_layers_that_do_not_fill_their_panels_are_left_to_others():
    assert not is_supported(layer(32, 24, False, torch.float32))
    assert not is_supported(layer(32, 16, False, torch.float64))
