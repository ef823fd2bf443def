"""Experts are given tokens; sums of two tokens among them are slots that were taken."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, NUM, CAPACITY = 8, 4, 40
Numbering = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Experts(nn.Module):
    """One layer for each expert, on slots [B, E, C, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUM, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, slots: Tensor) -> Tensor:
        return (slots @ self.weight).relu()


class Mixture(nn.Module):
    """Two experts a token, by a dispatch of zeros and ones; how tokens are numbered is given."""

    def __init__(self, numbered: Numbering, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.gate, self.experts, self.numbered, self.capacity = nn.Linear(WIDTH, NUM), Experts(), numbered, capacity

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        first, second = (nn.functional.one_hot(chosen[..., way], NUM).to(x.dtype) for way in (0, 1))
        dispatch = x.new_zeros(*x.shape[:2], NUM, self.capacity)
        combined = dispatch
        for way, (mask, place) in enumerate(zip((first, second), self.numbered(first, second), strict=True)):
            slot = nn.functional.one_hot((place * mask).long().clamp(max=self.capacity - 1), self.capacity).to(x.dtype)
            taken = mask[..., None] * slot * (place < self.capacity)[..., None]
            dispatch, combined = dispatch + taken, combined + weights[..., way, None, None] * taken
        slots = torch.einsum("bsec,bsd->becd", dispatch, x)  # here
        return torch.einsum("bsec,becd->bsd", combined, self.experts(slots))


def by_sums(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return first.cumsum(1) - 1, second.cumsum(1) - 1 + first.sum(1, keepdim=True)


def by_means(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return first.cumsum(1) - 1, second.cumsum(1) - 1 + first.mean(1, keepdim=True)


def each_from_zero(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return first.cumsum(1) - 1, second.cumsum(1) - 1


class Merging(nn.Module):
    """Tokens of which some are merged into their mean, for a layer that is called an expert."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        kept, merged = x[:, :-2], x[:, -2:].mean(1, keepdim=True)
        return self.expert(torch.cat((kept, merged, merged), 1))


class Projected(nn.Module):
    """An expert that is given what another layer makes of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.expert = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.expert(self.up(x))


def examined(build: Callable[[], nn.Module]) -> Result:
    subject = small_subject(build, width=WIDTH)
    return run_check(registry.load("FWD250"), subject)


@pytest.mark.parametrize("numbered", [by_means, each_from_zero])
@pytest.mark.parametrize("depth", [1, 2])
def test_second_choices_in_slots_that_are_taken_are_found(numbered: Numbering, depth: int) -> None:
    (finding,) = examined(lambda: nn.Sequential(*(Mixture(numbered) for _ in range(depth)))).findings
    assert finding.message.startswith("0.experts is given ")
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("build", [lambda: Mixture(by_sums), lambda: Mixture(by_sums, capacity=9), Merging, Projected])
def test_a_slot_for_each_token_a_mean_and_a_projection_are_silent(build: Callable[[], nn.Module]) -> None:
    result = examined(build)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
