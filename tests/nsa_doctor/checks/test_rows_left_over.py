"""A norm in training that is left with one row of a batch cut into parts is found; what torch refuses anyway is not."""

import linecache
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module], **more: object) -> Result:
    return run_check(registry.load("FWD103"), small_subject(make, width=DIM, max_length=80, **more))


class OfParts(nn.Module):
    """Normalises parts of a batch, each by itself, in training."""

    def __init__(self, cut: Callable[[Tensor], Sequence[Tensor]], rows: int = 0) -> None:
        super().__init__()
        self.bn, self.out, self.cut, self.rows = nn.BatchNorm1d(DIM), nn.Linear(DIM, DIM), cut, rows

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(1)
        if self.training and len(pooled) > 1:
            pooled = torch.cat([self.bn(part) for part in self.cut(pooled)])  # here
        elif len(pooled) > 1 or not self.training:
            pooled = self.bn(pooled)
        return x + self.out(pooled)[:, None]


class Split(OfParts):
    def __init__(self, rows: int) -> None:
        super().__init__(lambda x: x.split(rows), rows)


class Chunked(OfParts):
    def __init__(self, rows: int) -> None:
        super().__init__(lambda x: x.chunk(math.ceil(len(x) / rows)), rows)


class OddRows(nn.Module):
    """Every other row to a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(1)
        if self.training and len(x) > 3:
            third = len(x) // 4 * 4
            rest = self.odd(pooled[third:]) if third < len(x) else pooled[third:]  # here
            pooled = torch.cat((self.even(pooled[:third]), rest))
        return x + pooled[:, None]


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (lambda: Split(2), 3),
        (lambda: Chunked(2), 3),
        (lambda: Split(4), 5),
        (lambda: Chunked(4), 13),
        (lambda: Split(32), 33),
        (lambda: Chunked(16), 241),
        (lambda: nn.Sequential(nn.Linear(DIM, DIM), Split(2)), 3),
        (OddRows, 5),
    ],
    ids=["split", "chunks", "of four", "chunks of four", "of many", "chunks of many", "inside", "rest"],
)
def test_a_batch_that_leaves_a_norm_with_one_row_is_found(make: Callable[[], nn.Module], batch: int) -> None:
    (finding,) = examined(make).findings
    assert finding.evidence["batch"] == batch
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


class LeftAlone(OfParts):
    """A part of one row is left as it is."""

    def __init__(self) -> None:
        super().__init__(lambda x: x.split(2), 2)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(1)
        parts = [self.bn(part) if len(part) > 1 or not self.training else part for part in pooled.split(2)]
        return x + self.out(torch.cat(parts))[:, None]


class Joined(OfParts):
    """What would be left alone is joined to the part before."""

    def __init__(self) -> None:
        super().__init__(lambda x: [*x[: len(x) // 2 * 2 - 2].split(2), x[len(x) // 2 * 2 - 2 :]], 2)


class Pooled(nn.Module):
    """A batch of one row is refused, as torch has it."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bn(x.mean(1))[:, None]


class Halves(nn.Module):
    """Two halves, as of two devices: a batch of less than four is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.cat([self.bn(half) for half in x.mean(1).chunk(2)])[:, None]


class ByRow(nn.Module):
    """Each row by itself, over its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.bn(row) for row in x])


class Routed(nn.Module):
    """A norm of the tokens that it is sent, which a short batch has one of."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        sent = flat[:: 19 * len(x) if x.shape[:2] == (3, 19) else 19]
        return x + self.bn(sent).mean()


class OfTokens(OfParts):
    """Parts of tokens, of which a row has many."""

    def __init__(self) -> None:
        super().__init__(lambda x: x.split(2), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.bn(part.mT).mT for part in x.split(2)]))


HEALTHY = (LeftAlone, Joined, Pooled, Halves, ByRow, Routed, OfTokens)


@pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__)
def test_what_normalises_one_row_on_no_batch_or_by_torchs_rule_is_no_finding(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


def test_what_does_not_train_is_left_alone() -> None:
    assert examined(lambda: Split(2), modes=("eval", "no_grad")).findings == ()
