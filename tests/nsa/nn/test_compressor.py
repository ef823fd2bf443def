from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from nsa.nn.compressor import Compressor
from nsa.ops.compress import reference
from nsa.ops.geometry import Geometry

GEOMETRY = Geometry(l=6, d=3, l_sel=6, n_sel=3, w=4)
PARAMETERS: dict[str, tuple[str, ...]] = {
    "avg": (), "mlp": ("position", "w1", "b1", "w2", "b2"), "conv": ("kernel", "w", "b"),
}  # fmt: skip


@pytest.mark.parametrize("length", [1, 5, 6, 7, 9, 23], ids=lambda length: f"S{length}")
@pytest.mark.parametrize("phi", list(PARAMETERS))
def test_compressor_equals_the_oracle(phi: str, length: int, assert_close: Callable[..., None]) -> None:
    compressor = Compressor(phi, GEOMETRY, 4).double()
    for parameter in compressor.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, length, 3, 4, dtype=torch.float64)
    weights = (getattr(compressor, name) for name in PARAMETERS[phi])
    expected = reference.compress(x, _with_weights(getattr(reference, f"phi_{phi}"), *weights), GEOMETRY)
    got = compressor(x)
    assert got.shape[1] == GEOMETRY.num_compressed(length)
    if got.numel():
        assert_close(got, expected)


def test_conv_starts_close_to_the_mean() -> None:
    x = torch.randn(1, 30, 2, 64)
    mean = Compressor("avg", GEOMETRY, 64)(x)
    conv = Compressor("conv", GEOMETRY, 64)(x)
    assert (conv - mean).norm() < 0.3 * mean.norm()
    assert (conv - mean).norm() > 0.01 * mean.norm()


def test_mlp_starts_at_the_size_of_its_input() -> None:
    compressed = Compressor("mlp", GEOMETRY, 64)(torch.randn(1, 300, 2, 64))
    assert 0.1 < compressed.std() < 2


@pytest.mark.parametrize("phi", list(PARAMETERS))
def test_compressor_holds_only_the_parameters_its_phi_uses(phi: str) -> None:
    for bias in (True, False):
        names = {name for name, _ in Compressor(phi, GEOMETRY, 4, bias=bias).named_parameters()}
        assert names == set(PARAMETERS[phi]) - (set() if bias else {"b", "b2"})


@pytest.mark.parametrize("phi", ["mlp", "conv"])
def test_without_a_last_bias_it_is_zero(phi: str) -> None:
    torch.manual_seed(1)
    without = Compressor(phi, GEOMETRY, 4, bias=False)
    torch.manual_seed(1)
    zero = Compressor(phi, GEOMETRY, 4)
    x = torch.randn(1, 20, 2, 4)
    assert torch.equal(without(x), zero(x))


def _with_weights(phi: Callable[..., Tensor], *weights: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda block: partial(phi, block)(*weights)
