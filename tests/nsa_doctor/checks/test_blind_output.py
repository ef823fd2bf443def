"""Modules that answer the same whatever they are asked, and such as may."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Quantised(nn.Module):
    """Each token gives way to the nearest row of a codebook, which training moves towards its tokens in float32."""

    def __init__(self, choose: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.choose = choose
        self.register_buffer("codebook", torch.randn(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.nn.functional.one_hot(torch.cdist(x, self.codebook).argmin(-1), 16).float()
        out = self.choose(chosen, self.codebook)
        if self.training:
            self.codebook.lerp_((chosen.flatten(0, 1).mT @ x.detach().flatten(0, 1)) / 16, 0.01)
        return x + (out - x).detach() if torch.is_grad_enabled() else out


class Sines(nn.Module):
    """A table of positions, whatever stands there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1]).to(x)[:, None] * self.weight
        return angles.sin().expand(len(x), -1, -1)


class Starting(nn.Module):
    """An output of zeros, for a start."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), scale
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x) * self.scale  # here
        return self.down(inner.relu())


class Drawing(Starting):
    """In evaluation a sample, of nothing that it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.training else torch.randn_like(x) + 0 * x)


class Filled(Quantised):
    """Its codebook is empty until a pass in training fills it."""

    def __init__(self) -> None:
        super().__init__(together)
        self.codebook.zero_()
        self.bias = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.codebook.any():
            self.codebook.copy_(x.detach().flatten(0, 1)[:16])
        return super().forward(x) + self.bias


class Queries(nn.Module):
    """Maps of learned tables of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = (nn.Parameter(torch.randn(16, WIDTH)) for _ in range(2))
        self.map, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1], device=x.device)
        return self.out(self.map(self.rows[at // 16] + self.columns[at % 16]).tanh()).expand(len(x), -1, -1)


class Clock(nn.Module):
    """Counts events where it is to tell their times."""

    def forward(self, times: Tensor) -> Tensor:
        return torch.arange(times.shape[1]).to(times)[:, None].expand(-1, WIDTH).sin()


class Events(nn.Module):
    """The first channel is a time, the others are mixed."""

    def __init__(self, clock: nn.Module | None, taken: Callable[[Tensor], Tensor] = lambda times: times) -> None:
        super().__init__()
        self.clock, self.taken, self.mix = clock, taken, nn.Linear(WIDTH - 1, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(x[..., 1:])
        return mixed if self.clock is None else mixed + self.clock(self.taken(x[..., 0]).cumsum(1))


class Hours(nn.Module):
    """A row for each whole hour, through which no gradient goes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(8, WIDTH)

    def forward(self, times: Tensor) -> Tensor:
        return self.rows(times.long() % 8)


class Soft(nn.Module):
    """Weights that sum to one, taken apart from what they weigh."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.rows = nn.Linear(WIDTH, 16), nn.Parameter(torch.randn(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return apart(self.scores(x).softmax(-1), self.rows)


def apart(chosen: Tensor, codebook: Tensor) -> Tensor:
    return torch.einsum("bni,jd->bnd", chosen, codebook.to(chosen))  # here


def together(chosen: Tensor, codebook: Tensor) -> Tensor:
    return torch.einsum("bnj,jd->bnd", chosen, codebook.to(chosen))


def examined(make: Callable[[], nn.Module], code: str = "FWD251", **others: object) -> Result:
    subject = small_subject(make, width=WIDTH, max_length=80, **others)
    return run_check(registry.load(code), subject)


@pytest.mark.parametrize(
    ("make", "operation"),
    [(lambda: Quantised(apart), "sum"), (lambda: Starting(0.0), "mul"), (Soft, "sum")],
    ids=["sums taken apart", "a product with zeros", "soft weights taken apart"],
)
def test_what_answers_the_same_is_found_at_the_operation_that_loses_it(
    make: Callable[[], nn.Module], operation: str
) -> None:
    (finding,) = examined(make).findings
    assert finding.message == (
        "the output is the same for inputs that have nothing in common at S=67; "
        f"it is lost in {operation}, which gives the same for other values"
    )
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


@pytest.mark.parametrize(
    "make",
    [lambda: Quantised(together), Sines, Starting, nn.Identity, Drawing, Filled, Queries],
    ids=["a codebook", "a table", "zeros to begin with", "nothing", "a sample", "filled in training", "two tables"],
)
def test_what_reads_its_input_and_what_makes_a_table_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert not result.findings
    assert not result.notes


def test_a_channel_that_a_part_drops_is_found_there() -> None:
    (finding,) = examined(lambda: Events(Clock())).findings
    assert finding.message == (
        "channel 0 of 8 of the input changes no output at S=67; Clock is handed other values where they are others, "
        "and gives the same"
    )
    assert (finding.where.module, finding.where.module_class) == ("clock", "Clock")


class Counted(nn.Module):
    """A part is given all channels, for how many tokens there are."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.mix = Clock(), nn.Linear(WIDTH - 1, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x[..., 1:]) + self.clock(x)[..., :WIDTH].mean(-2)


def test_a_part_that_is_given_all_channels_for_their_number_is_not_blamed() -> None:
    result = examined(Counted)
    assert (result.findings, len(result.notes)) == ((), 1)


def test_a_channel_that_nothing_takes_is_a_note_and_one_that_is_an_index_is_none() -> None:
    result = examined(lambda: Events(None))
    assert (result.findings, len(result.notes)) == ((), 1)
    assert "channel 0 of 8 of the input changes no output" in result.notes[0]
    result = examined(lambda: Events(Hours(), torch.Tensor.exp))
    assert (result.findings, result.notes) == ((), ())


@pytest.mark.parametrize("code", ["FWD203", "FWD207", "FWD210", "FWD221"])
def test_what_training_does_in_one_dtype_alone_is_examined_in_that(code: str) -> None:
    result = examined(lambda: Quantised(together), code)
    assert not result.findings, result.findings[0].message
