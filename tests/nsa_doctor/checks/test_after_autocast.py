"""A table that a call under autocast leaves behind is found, and one that only such calls read is not."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

SIZE = 16


class Rotary(nn.Module):
    """One head of attention with a table that is made in float32, and once for the longest sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.table: Tensor | None = None

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], dtype=torch.promote_types(torch.float32, x.dtype), device=x.device)

    def made(self, x: Tensor) -> Tensor:
        angles = self.positions(x)[:, None] * 10.0 ** -torch.arange(SIZE // 2, device=x.device)
        return torch.cat((angles.cos(), angles.sin()), -1)

    def rows(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < x.shape[1] or self.table.dtype.itemsize < x.dtype.itemsize:
            self.table = self.made(x)
        return self.table[: x.shape[1]]  # kept

    def turn(self, x: Tensor) -> Tensor:
        cos, sin = self.rows(x).to(x.dtype).chunk(2, -1)  # kept
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.turn(self.q(x)), self.turn(self.k(x))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ self.v(x)


class PositionsOfTheQueries(Rotary):
    """Whole numbers beyond 256 merge where the first call is under autocast."""

    def positions(self, x):
        return torch.arange(x.shape[1], dtype=x.dtype, device=x.device)

    def rows(self, x):
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = self.made(x).float()
        return self.table[: x.shape[1]]  # kept


class TableOfTheFirst(Rotary):
    """Keeps the table for 1,024 tokens in the dtype that it is asked for first."""

    def rows(self, x):
        if self.table is None:
            self.table = self.made(x.new_zeros(1, 1024, 1)).to(x.dtype)
        return self.table[: x.shape[1]]  # kept


class LongerUnderAutocast(Rotary):
    """The first call is always right: a longer one writes the table anew, in its own dtype."""

    def rows(self, x):
        if self.table is None:
            self.table = self.made(x)
        if len(self.table) < x.shape[1]:
            self.table = self.made(x).to(x.dtype)
        return self.table[: x.shape[1]]  # kept


class WeightsOfTheFirst(Rotary):
    """Keeps a product of weights, which autocast makes in bfloat16: a later call raises."""

    product: Tensor | None = None

    def forward(self, x):
        if torch.is_grad_enabled():
            return super().forward(x)
        if self.product is None:
            self.product = self.q.weight @ self.k.weight
        scores = nn.functional.linear(x, self.product) @ x.mT  # kept
        return scores.tril() @ self.v(x) / x.shape[1]


class TableOfEachDtype(Rotary):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[torch.dtype, Tensor] = {}

    def rows(self, x):
        if len(self.tables.get(x.dtype, ())) < x.shape[1]:
            self.tables[x.dtype] = self.made(x).to(x.dtype)
        return self.tables[x.dtype][: x.shape[1]]


class MadeInEachCall(Rotary):
    def rows(self, x):
        return self.made(x).to(x.dtype)


class OffForCuda(Rotary):
    """Angles by a product, which autocast rounds, with autocast off where it is meant to be: on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speeds", 10.0 ** -torch.arange(SIZE // 2, dtype=torch.float32))

    @torch.autocast("cuda", enabled=False)
    def made(self, x):
        angles = self.positions(x).to(self.speeds)[:, None] @ self.speeds[None]
        return torch.cat((angles.cos(), angles.sin()), -1)

    def rows(self, x):
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = self.made(x).float()
        return self.table[: x.shape[1]]


class GrowsATable(Rotary):
    """A buffer that is made with the module, which a conversion to float64 leaves as exact as float32 is, and grows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speeds", 10.0 ** -torch.arange(SIZE // 2, dtype=torch.float32))
        del self.table
        self.register_buffer("table", self.grown(64), persistent=False)

    def grown(self, length):
        angles = torch.arange(length, dtype=self.speeds.dtype)[:, None] * self.speeds
        return torch.cat((angles.cos(), angles.sin()), -1)

    def rows(self, x):
        if len(self.table) < x.shape[1]:
            self.table = self.grown(x.shape[1])
        return self.table[: x.shape[1]]


class CountsItsCalls(Rotary):
    """Keeps what was last computed, which nothing reads."""

    last: object = None

    def forward(self, x):
        y = super().forward(x)
        self.last = y.dtype, y.detach()
        return y


class DrawnAtFirstCall(Rotary):
    """Draws a projection when it is first called, in the dtype of what comes."""

    projection: Tensor | None = None

    def forward(self, x):
        q = self.q(x)
        if self.projection is None:
            self.projection = torch.randn(SIZE, SIZE, dtype=q.dtype, device=x.device)
        return super().forward(x @ self.projection.to(x.dtype))


class RefusesAutocast(TableOfTheFirst):
    def forward(self, x):
        assert not torch.is_autocast_enabled(x.device.type), "autocast is not supported"
        return super().forward(x)


def examined(make: type[nn.Module], seed: int = 0, max_length: int = 512) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(
        name="rotary",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=SIZE,
        max_length=max_length,
        modes=("no_grad", "eval"),
        seed=seed,
        packages=("tests",),
    )
    return run_check(registry.load("FWD210"), subject)


@pytest.mark.parametrize("make", [PositionsOfTheQueries, TableOfTheFirst, LongerUnderAutocast])
def test_a_table_that_autocast_leaves_is_found_where_it_is_read(make: type[nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert "gives another result after a call under autocast to bfloat16 at S=" in finding.message
    assert "# kept\n" in linecache.getline(finding.where.file, finding.where.line)


def test_weights_that_autocast_leaves_raise_where_they_are_read() -> None:
    (finding,) = examined(WeightsOfTheFirst).findings
    assert finding.message.startswith("raises RuntimeError: ")
    assert "after a call under autocast to bfloat16 at S=320" in finding.message
    assert "# kept\n" in linecache.getline(finding.where.file, finding.where.line)


@pytest.mark.parametrize(
    "make",
    [
        Rotary,
        TableOfEachDtype,
        MadeInEachCall,
        OffForCuda,
        GrowsATable,
        CountsItsCalls,
        DrawnAtFirstCall,
        RefusesAutocast,
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_autocast_leaves_for_itself_is_silent(make: type[nn.Module], seed: int) -> None:
    result = examined(make, seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
