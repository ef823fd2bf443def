"""A layout that is wrong in itself, and one that is wrong because an earlier call's is kept for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core.finding import Finding
from tests.nsa_doctor.functions.examined import results, subject_of

KEPT = "one call's layout is kept for others"


def read_by(strides: Callable[[Tensor], tuple[int, ...]]) -> Callable[..., Tensor]:
    """Attention whose backward reads the incoming gradient by those strides."""

    class Attend(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Tensor:
            ctx.given = given
            return scaled_dot_product_attention(*given[:3], is_causal=given[3])

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
            (dout,) = gradients
            dout = torch.as_strided(dout, dout.shape, strides(dout))
            with torch.enable_grad():
                inputs = [each.detach().requires_grad_() for each in ctx.given[:3]]
                out = scaled_dot_product_attention(*inputs, is_causal=ctx.given[3])
            return *torch.autograd.grad(out, inputs, dout), None

    def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        return Attend.apply(query, key, value, is_causal)

    return attention


def wrong_at_even_lengths(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Keeps nothing, and goes wrong with keys that are not contiguous where their number is even."""
    out = scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return out + 1 if key.shape[-2] % 2 == 0 and not key.is_contiguous() and 0 not in key.stride() else out


def found(function: Callable[..., Tensor]) -> Finding:
    """The finding about the gradient of the queries."""
    result = results(subject_of(function, "sdpa", "causal"), ["FUN303"])["FUN303"]
    return next(each for each in result.findings if each.evidence["tensor"] == "dq")


def test_strides_that_an_earlier_call_left_are_named_as_such() -> None:
    plans: dict[torch.Size, tuple[int, ...]] = {}
    finding = found(read_by(lambda dout: plans.setdefault(dout.shape, dout.stride())))
    assert KEPT in finding.control
    assert "(dout)" in finding.message


def test_strides_that_are_never_read_are_not() -> None:
    finding = found(read_by(lambda dout: dout.contiguous().stride()))
    assert finding.control == "right with contiguous tensors"


def test_what_is_wrong_at_other_lengths_alone_is_not() -> None:
    result = results(subject_of(wrong_at_even_lengths, "sdpa", "causal"), ["FUN303"])["FUN303"]
    assert [each.control for each in result.findings if each.evidence["tensor"] == "out"] == [
        "right with contiguous tensors"
    ]
