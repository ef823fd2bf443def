"""What is used on the side of a condition on which it is None is found, run or not; what may be set before is not."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.more = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Called(Base):
    def forward(self, x: Tensor) -> Tensor:
        if self.more is None:
            x = self.more(x)  # here
        return self.mix(x)


class OnTheOtherSide(Base):
    def scores(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if x.ndim > 2 or mask is not None:
            return self.mix(x)
        else:
            x = x.masked_fill(mask[:, None], 0)  # here
        return x


class OfBoth(Base):
    def pooled(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None and self.training:
            return x[:, : lengths.max()]  # here
        return x


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Called, "self.more is called on the side of `self.more is None`"),
        (OnTheOtherSide, "mask is indexed on the side of `x.ndim > 2 or mask is not None`"),
        (OfBoth, "lengths is asked for .max on the side of `lengths is None and self.training`"),
    ],
)
def test_a_use_where_it_is_none_is_found(make: Callable[[], nn.Module], words: str) -> None:
    (finding,) = examined(make).findings
    assert words in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


class SetBefore(Base):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.table is None:
            self.table = x.new_zeros(x.shape[-1])
            x = x + self.table.sum()
        if mask is None:
            mask = x[..., 0] > 0
            x = x * mask[..., None]
        return self.mix(x)


class SetByACall(Base):
    def build(self, x: Tensor) -> None:
        self.table = x.new_zeros(x.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.build(x)
            x = x + self.table.sum()  # type: ignore[attr-defined]
        return self.mix(x)


class Tried(Base):
    def forward(self, x: Tensor) -> Tensor:
        try:
            if self.table is None:
                x = x + self.table.sum()
        except AttributeError:
            pass
        return self.mix(x)


class Either(Base):
    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        if mask is None or other is None:
            x = x if mask is None else x * mask.sum()
        if mask is not None or other is not None:
            return self.mix(x if mask is None else x * mask.sum())

        def later() -> Tensor:
            return mask.sum()

        return self.mix(x) if mask is None and callable(later) else x


@pytest.mark.parametrize("make", [Base, SetBefore, SetByACall, Tried, Either])
def test_what_may_be_something_there_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD265"), small_subject(make, width=DIM, max_length=32))


class BindsItAgain(Base):
    """By a comprehension, an import, a definition, or not on that side of a condition within."""

    def comprehended(self, x: Tensor, head: nn.Module | None = None) -> list[Tensor]:
        if head is None:
            return [head(x) for head in self.children()]
        return [head(x)]

    def imported(self, x: Tensor, fast: Any = None) -> Tensor:
        if fast is None:
            import torch.nn.functional as fast

            x = fast.relu(x)
        return x

    def defined(self, x: Tensor, weigh: Any = None) -> Tensor:
        if weigh is None:

            def weigh(y: Tensor) -> Tensor:
                return y

            x = weigh(x)
        return x

    def guarded(self, x: Tensor, mask: Tensor | None = None) -> Any:
        if mask is None:
            shape = x.shape if mask is None else mask.shape
            return shape, mask is not None and mask.sum()
        return x


def test_a_name_that_is_bound_again_there_is_silent() -> None:
    assert examined(BindsItAgain).findings == ()
