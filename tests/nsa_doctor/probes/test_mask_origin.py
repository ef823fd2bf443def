"""A leak of later tokens is placed at the mask that shows them, and at the statistic that is of all tokens together."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH = 8


def visible(length: int, further: int) -> Tensor:
    """[length, length]: no key later than `further` tokens after the query."""
    at = torch.arange(length)
    near = at[:, None] - at < length // 2
    before = at <= at[:, None] + further  # mask
    return near & before


class Leaking(nn.Module):
    """One attention, by a mask that is off by one or queries that are divided by the largest of all."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.proj(x) @ x.transpose(1, 2)
        if self.fault == "statistic":
            largest = x.abs().amax((1, 2), keepdim=True)  # statistic
            scores = scores / largest
        seen = visible(x.shape[1], 1 if self.fault == "mask" else 0)
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ x


@pytest.mark.parametrize("fault", ["mask", "statistic"])
def test_the_line_of_a_leak_is_named(fault: str) -> None:
    subject = Subject(
        name="leaking",
        build=lambda seed: (torch.manual_seed(seed), Leaking(fault))[1],
        forward=lambda module, x: module(x),
        input="embeddings",
        width=WIDTH,
        packages=("tests",),
    )
    (finding,) = run_check(registry.load("FWD201"), subject).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith(f"# {fault}"), finding
