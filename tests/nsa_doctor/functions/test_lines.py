"""The line of a wrong gradient is the one that it alone is made of, in a backward as people write them."""

import inspect
from typing import Any

import pytest

from nsa_doctor.probes.tensors.backward_source import read_backward

ORDER = ("dq", "dk", "dv")


def tiled(ctx: Any, dout: Any) -> Any:
    q, k, v, lse, delta = ctx.saved_tensors
    dq, dk, dv = q * 0, k * 0, v * 0
    for rows in ctx.tiles:
        p = (q[rows] @ k.mT - lse).exp()
        dv += p.mT @ dout[rows]
        ds = p * (dout[rows] @ v.mT - delta[rows])
        dq[rows] = ds @ k
        dk.add_(ds.mT @ q[rows])
    dq, dk, dv = (each.to(q.dtype) for each in (dq, dk, dv))
    return dq, dk, dv, None


def listed(ctx: Any, dout: Any) -> Any:
    p, q, k, v = ctx.saved_tensors
    ds = p * (dout @ v.mT)
    grads = (each.contiguous() for each in (ds @ k, ds.mT @ q, p.mT @ dout))
    return *(each.to(q.dtype) for each in grads), None


def elsewhere(ctx: Any, dout: Any) -> Any:
    return _together(ctx, dout)


def _together(ctx: Any, dout: Any) -> Any:
    return ctx, dout


def text_at(function: Any, wrong: tuple[str, ...]) -> str:
    backward = read_backward(function.__code__)
    assert backward is not None
    found = backward.at_fault(
        [ORDER.index(name) for name in wrong], [each for each, name in enumerate(ORDER) if name not in wrong]
    )
    lines, first = inspect.getsourcelines(function)
    return "" if found is None else lines[found.line - first].strip()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("dq",), "dq[rows] = ds @ k"),
        (("dk",), "dk.add_(ds.mT @ q[rows])"),
        (("dv",), "dv += p.mT @ dout[rows]"),
        (("dq", "dk"), "ds = p * (dout[rows] @ v.mT - delta[rows])"),
        (("dq", "dk", "dv"), "p = (q[rows] @ k.mT - lse).exp()"),
    ],
)
def test_the_line_is_that_which_the_wrong_gradients_alone_are_made_of(wrong: tuple[str, ...], text: str) -> None:
    assert text_at(tiled, wrong) == text


def test_what_a_generator_returns_is_followed_to_its_own_expression() -> None:
    assert text_at(listed, ("dk",)).startswith("grads =")
    assert text_at(listed, ("dq", "dk")) == "ds = p * (dout @ v.mT)"


def test_gradients_that_are_made_elsewhere_have_no_line() -> None:
    assert text_at(elsewhere, ("dk",)) == ""
