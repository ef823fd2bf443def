"""A step that goes wrong by a position, an offset or a mask is placed where that is computed, not where it is used."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM, LONGEST, WINDOW = 8, 200, 12
State = tuple[Tensor, Tensor]


class Table(nn.Module):
    """Factors of positions, of which a part is read."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.arange(LONGEST)[:, None] * torch.linspace(0.1, 0.9, DIM)
        self.register_buffer("table", 1 + values.cos())

    def forward(self, start: int, length: int) -> Tensor:
        return self.table[start : start + length]


class Bias(nn.Module):
    """A slope of the distance between queries, which are the last of the keys, and keys."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, num_queries: int, num_keys: int) -> Tensor:
        offset = 0 if self.offset and num_queries == 1 else num_keys - num_queries
        query = torch.arange(num_queries)[:, None] + offset  # inside
        return -0.1 * (query - torch.arange(num_keys)).abs()


def near(num_queries: int, num_keys: int, reach: int) -> Tensor:
    """Which of the keys, the last of which are the queries, lie within reach behind each."""
    distance = torch.arange(num_keys - num_queries, num_keys)[:, None] - torch.arange(num_keys)
    return (distance >= 0) & (distance <= reach)  # near


class Attention(nn.Module):
    """Causal attention with positions by a table and a bias; `wrong` says which of them a step has wrong."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.table, self.bias, self.wrong = Table(), Bias(wrong == "offset"), wrong

    def run(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        past = 0 if state is None else state[0].shape[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        start = past - 1 if past and self.wrong == "position" else past
        turn = self.table(start, x.shape[1])  # position
        q, k = q * turn, k * turn
        if state is not None:
            k, v = torch.cat((state[0], k), 1), torch.cat((state[1], v), 1)
        seen = torch.ones(x.shape[1], k.shape[1], dtype=torch.bool).tril(past)
        if past and self.wrong == "mask":
            seen = torch.ones(x.shape[1], k.shape[1], dtype=torch.bool).tril(past - 2)  # mask
        if self.wrong == "reach":
            visible = near(x.shape[1], k.shape[1], WINDOW if past else WINDOW - 1)
            return self.out(scaled_dot_product_attention(q, k, v, attn_mask=visible)), (k, v)
        scores = q @ k.mT + self.bias(x.shape[1], k.shape[1])
        return self.out(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v), (k, v)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, None)[0]

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, State]:
        return self.run(x, state)


@pytest.mark.parametrize(
    ("wrong", "marked", "part"),
    [
        ("position", "position", Attention),
        ("offset", "inside", Bias),
        ("mask", "mask", Attention),
        ("reach", "near", near),
    ],
)
def test_the_line_is_that_of_what_is_wrong(wrong: str, marked: str, part: Callable[..., Any]) -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Attention(wrong)

    subject = Subject(
        name="tests",
        build=build,
        forward=lambda module, x: module(x),
        prefill=lambda module, x: module.run(x, None),
        step=lambda module, x, state: module.step(x, state),
        input="embeddings",
        width=DIM,
        max_length=LONGEST,
        packages=("tests",),
    )
    finding, *_ = run_check(registry.load("DEC101"), subject).findings
    lines, first = inspect.getsourcelines(part)
    assert finding.where.line == first + next(n for n, line in enumerate(lines) if line.endswith(f"# {marked}\n"))
