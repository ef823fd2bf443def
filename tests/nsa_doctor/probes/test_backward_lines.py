"""The line of a hand-written backward from which wrong gradients come, and no right one."""

import linecache
from typing import Any

import pytest
import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.backward_lines import first_line, place_at_fault


class Tiled(torch.autograd.Function):
    """Attention whose backward goes over tiles of keys."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, values: Tensor, scale: Tensor) -> Tensor:
        probs = (q @ keys.mT * scale).softmax(-1)
        ctx.save_for_backward(q, keys, values, probs, scale)  # saves
        return probs @ values

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        q, keys, values, probs, scale = ctx.saved_tensors  # reads
        grad = given[0]
        grad_keys, grad_values = torch.empty_like(keys), torch.empty_like(values)
        grad_q = torch.zeros_like(q)
        for start in range(0, keys.shape[-2], 2):
            part = slice(start, start + 2)
            tile = probs[..., part]
            grad_values[..., part, :] = tile.mT @ grad  # values
            inner = tile * (grad @ values[..., part, :].mT)
            inner.sub_(tile * inner.sum(-1, keepdim=True))  # scores
            grad_keys[..., part, :] = inner.mT @ q * scale  # keys
            if start:
                grad_q += inner @ keys[..., part, :] * scale  # queries
        return grad_q, grad_keys.view_as(keys), grad_values, (q @ keys.mT * probs).sum()  # scale


def line_of(comment: str) -> int:
    lines = linecache.getlines(__file__)
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {comment}\n"))


@pytest.mark.parametrize(
    ("wrong", "right", "comment"),
    [
        ({0}, {1, 2}, "queries"),
        ({1}, {0, 2}, "keys"),
        ({2}, {0, 1}, "values"),
        ({0, 1}, {2, 3}, "scores"),
        ({3}, {0, 1}, "scale"),
        ({0, 1, 2, 3}, set(), "saves"),
    ],
    ids=str,
)
def test_the_line_is_the_last_that_wrong_gradients_share(wrong: set[int], right: set[int], comment: str) -> None:
    found = place_at_fault(Tiled, wrong, right)
    assert found is not None
    assert (found.file, found.line) == (__file__, line_of(comment))


def test_nothing_is_said_without_a_wrong_gradient() -> None:
    assert place_at_fault(Tiled, set(), {0}) is None
    assert first_line(Tiled, Place()).line == line_of("reads")
