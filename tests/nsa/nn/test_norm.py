import pytest
import torch

from nsa.nn.norm import RMSNorm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_norm_divides_by_the_root_mean_square(dtype: torch.dtype) -> None:
    norm = RMSNorm(48, eps=1e-3).to(dtype)
    torch.nn.init.normal_(norm.weight, 1.0, 0.5)
    x = (torch.randn(2, 7, 48) * 3).to(dtype)
    wide, weight = x.double(), norm.weight.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    got = norm(x)
    assert got.dtype == dtype
    # Half precision is rounded once, at the end; wider dtypes carry the rounding of the sum of 48 squares too.
    roundings = 1 if dtype.itemsize == 2 else 8
    assert (got.double() - expected).abs().max() <= roundings * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_squares_beyond_half_precision_stay_finite(dtype: torch.dtype) -> None:
    x = torch.full((1, 1, 32), 3e4, dtype=dtype)
    assert torch.equal(RMSNorm(32).to(dtype)(x), torch.ones_like(x))


def test_zeros_give_zeros_and_a_finite_gradient() -> None:
    x = torch.zeros(1, 2, 8, requires_grad=True)
    out = RMSNorm(8)(x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_norm_gradient_is_that_of_float64() -> None:
    norm = RMSNorm(6).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, x)
