"""Which blocks are chosen: every way of choosing wrong has its name, and other ways of choosing right have none."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import Rules
from nsa_doctor.worker.run_check import run_check
from tests.gallery.faulty.nsa_like import to_ranges

CODES = [code for code in sorted(registry.manuals()) if code.startswith("SEL")]
Select = Callable[[Tensor, int], Tensor]
WIDTH, CHOSEN = 16, 4  # of small.yaml


def blocks(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[-1]).expand_as(scores)


def times(scores: Tensor, first: int) -> Tensor:
    return torch.arange(first, first + scores.shape[1])[None, :, None, None]


def ranked(scores: Tensor, first: int, *, forced: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
    """Slots in descending order of rank: forced blocks, then by score; written without a look at `nsa`."""
    block, current = blocks(scores), times(scores, first) // WIDTH
    must = (block == 0) | (block == current) | (block == current - 1) if forced is None else forced(block, current)
    rank = scores.double().masked_fill(must, 1e9).masked_fill(block > current, -1e9)
    best = rank.argsort(dim=-1, descending=True, stable=True)[..., :CHOSEN]
    return torch.where(rank.gather(-1, best) > -1e8, best, -1)


def ascending(slots: Tensor) -> Tensor:
    return (
        torch.where(slots < 0, 1 << 20, slots).sort(-1).values.where((slots >= 0).sort(-1, descending=True).values, -1)
    )


def with_ranges(change: Callable[[Tensor, int], Tensor]) -> Callable[[Select], Select]:
    def faulty(select: Select) -> Select:
        return lambda scores, first: change(
            to_ranges(select(scores, first), WIDTH, first + scores.shape[1]), first + scores.shape[1]
        )

    return faulty


def duplicated(ranges: Tensor, _: int) -> Tensor:
    return torch.cat((ranges[..., :1, :], ranges[..., :-1, :]), dim=-2)


FAULTY: dict[str, tuple[str, Callable[[Select], Select]]] = {
    "one-too-high": ("SEL101", lambda s: lambda x, t: torch.where(s(x, t) < 0, -1, s(x, t) + x.shape[-1])),
    "minus-two": ("SEL101", lambda s: lambda x, t: torch.where(s(x, t) < 0, -2, s(x, t))),
    "range-beyond-the-end": ("SEL101", with_ranges(lambda r, n: torch.where(r == n, n + 3, r))),
    "range-reversed": ("SEL102", with_ranges(lambda r, n: torch.where(r[..., :1] > 0, r.flip(-1), r))),
    "range-cut-to-nothing": ("SEL102", with_ranges(lambda r, n: torch.stack((r[..., 0], r[..., 0]), -1).where(
        (r[..., :1] > 0) & (r[..., 1:] < n), r))),
    "descending": ("SEL103", lambda s: lambda x, t: s(x, t).sort(-1, descending=True).values),
    "empty-slots-first": ("SEL103", lambda s: lambda x, t: s(x, t).sort(-1).values),
    "no-sort-before-unique": ("SEL104", lambda s: lambda x, t: torch.where(s(x, t) == 1, 0, s(x, t))),
    "ranges-overlap": ("SEL104", with_ranges(duplicated)),
    "current-block-missing": ("SEL105", lambda s: lambda x, t: torch.where(
        s(x, t) == times(x, t) // WIDTH - 1, -1, s(x, t))),
    "first-block-not-forced": ("SEL105", lambda s: lambda x, t: ascending(
        ranked(x, t, forced=lambda block, current: block >= current - 1))),
    "forced-not-counted": ("SEL106", lambda s: lambda x, t: torch.cat((s(x, t), s(1 - x, t)), -1)),
    "next-block": ("SEL107", lambda s: lambda x, t: torch.where(
        s(x, t) == times(x, t) // WIDTH, (s(x, t) + 1).clamp(max=x.shape[-1] - 1), s(x, t))),
    "ties-to-the-higher": ("SEL109", lambda s: lambda x, t: ascending(ranked(x + 1e-9 * blocks(x), t))),
    "least-important": ("SEL110", lambda s: lambda x, t: s(1 - x, t)),
    "two-are-enough": ("SEL110", lambda s: lambda x, t: torch.where(torch.arange(4) < 3, s(x, t), -1).where(
        (s(x, t) == times(x, t) // WIDTH).any(-1, keepdim=True) & (s(x, t)[..., 3:] < 0), s(x, t).index_fill(
            -1, torch.tensor([1]), -1))),
    "biased-by-its-index": ("SEL110", lambda s: lambda x, t: s(x + 1e-5 * blocks(x), t)),
    "in-few-bits": ("SEL110", lambda s: lambda x, t: s(x.bfloat16().to(x.dtype), t)),
    "index-of-a-byte": ("SEL110", lambda s: lambda x, t: s(x[..., :256].clone(), t) if x.shape[-1] > 2048 else s(x, t)),
    "first-row-chooses": ("SEL111", lambda s: lambda x, t: s(x[:1].expand_as(x), t)),
    "counted-by-rounding-down": ("SEL112", lambda s: lambda x, t: torch.where(
        s(x, t) < (t + x.shape[1]) // WIDTH, s(x, t), -1)),
}  # fmt: skip


def verdicts(subject: Subject) -> dict[str, Verdict]:
    return {code: run_check(registry.load(code), subject).verdict for code in CODES}


@pytest.mark.parametrize(("code", "faulty"), FAULTY.values(), ids=FAULTY.keys())
def test_a_wrong_choice_has_its_name(code: str, faulty: Callable[[Select], Select], small: Subject) -> None:
    assert small.select is not None
    result = run_check(registry.load(code), replace(small, select=faulty(small.select)))
    assert result.verdict is Verdict.FAIL, result.reason
    assert result.findings[0].where.module_class == "NSAttention"
    assert result.findings[0].where.file


HEALTHY: dict[str, Select] = {
    "best-first": ranked,
    "ascending": lambda x, t: ascending(ranked(x, t)),
    "ranges": lambda x, t: to_ranges(ascending(ranked(x, t)), WIDTH, t + x.shape[1]),
    "ties-to-the-higher": lambda x, t: ascending(ranked(x.double() + 1e-9 * blocks(x), t)),
}


IN_SHORT = ("ranges", "ties-to-the-higher")


@pytest.mark.parametrize(
    "select",
    [pytest.param(each, id=name, marks=[pytest.mark.full] * (name not in IN_SHORT)) for name, each in HEALTHY.items()],
)
def test_another_right_choice_is_no_finding(select: Select, small: Subject) -> None:
    foreign = replace(small, select=select, choose=None, anatomy=None, is_choice_canonical=False)
    assert {code: verdict for code, verdict in verdicts(foreign).items() if verdict is not Verdict.PASS} == {}


@pytest.mark.parametrize("seed", range(4))
def test_nsa_chooses_right_whatever_the_seed(seed: int, small: Subject) -> None:
    found = verdicts(replace(small, seed=seed))
    assert set(found.values()) == {Verdict.PASS}


def test_the_rules_are_those_of_the_text() -> None:
    rules = Rules(l=8, d=4, l_sel=16, n_sel=4, w=24)
    assert rules.visible(6) == []
    assert rules.visible(11) == [0, 1]
    assert [rules.shared_strides(block, 1) for block in range(2, 9)] == [0, 1, 2, 2, 2, 1, 0]
    assert rules.forced(40) == [0, 1, 2]
    assert rules.best([0.0, 0.5, 0.5, 0.9, 0.1, 0.2], 95) == [0, 3, 4, 5]
    assert rules.best([0.0, 0.5, 0.5, 0.5, 0.1, 0.2], 95) == [0, 1, 4, 5]
    assert rules.window(30) == range(7, 31)
    assert rules.readable([2, 0], 33) == [*range(16), 32, 33]
