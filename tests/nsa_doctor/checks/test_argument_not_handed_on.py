"""Arguments that are taken and not handed on are found; ones that have a use, or are said to have none, are not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Inner(nn.Module):
    def __init__(self, dim: int = DIM, hidden: int = DIM) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.down(self.up(x).tanh()) * scale


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class LeavesKeywords(Plain):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.inner(*args)  # here


class Replaced(Plain):
    """A forward that is put in the place of another after it is made."""

    def __init__(self) -> None:
        super().__init__()
        original = self.inner.forward

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            return original(*args) + 1  # here

        self.inner.forward = forward  # type: ignore[method-assign]


class GivesAnother(Plain):
    def __init__(self, dim: int = DIM, hidden: int = 16) -> None:
        super().__init__()
        self.hidden = hidden
        self.inner = Inner(dim=dim, hidden=dim)  # here


class HandsOn(Plain):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.inner(*args, **kwargs)


class ReadsKeywords(Plain):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.inner(*args) * kwargs.get("scale", 1.0)


class LeavesThemToTorch(Plain):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.inner(torch.add(*args, 0))


class SaysSo(Plain):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:  # kwargs: unused, of other attentions
        return self.inner(*args)


class IsForAnother(Plain):
    """The hidden size is for the second part."""

    def __init__(self, dim: int = DIM, hidden: int = 16) -> None:
        super().__init__()
        self.inner = nn.Sequential(Inner(dim=dim, hidden=dim), Inner(dim, hidden))


class IsReadLater(Plain):
    def __init__(self, dim: int = DIM, hidden: int = 16) -> None:
        super().__init__()
        self.hidden = hidden
        self.inner = Inner(dim=dim, hidden=dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) / self.hidden


class IsOneSize(Plain):
    """Square, as it says: there is no other setting of that name."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.inner = Inner(dim=dim, hidden=dim)


def examined(kind: type[nn.Module]) -> Result:
    return run_check(registry.load("FWD242"), embedding_subject(kind))


@pytest.mark.parametrize("kind", [LeavesKeywords, Replaced, GivesAnother])
def test_what_is_not_handed_on_is_found_at_its_line(kind):
    (finding,) = examined(kind).findings
    with open(finding.where.file, encoding="utf-8") as source:
        assert source.readlines()[finding.where.line - 1].endswith("# here\n")


@pytest.mark.parametrize(
    "kind",
    [Plain, HandsOn, ReadsKeywords, LeavesThemToTorch, SaysSo, IsForAnother, IsReadLater, IsOneSize],
)
def test_what_has_a_use_is_not(kind):
    assert examined(kind).verdict is Verdict.PASS
