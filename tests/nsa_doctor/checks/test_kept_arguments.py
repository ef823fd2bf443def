"""What a module keeps of an argument by its shape alone is found where it is made; what is kept rightly passes."""

import linecache
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Decayed(nn.Module):
    """Each token beside a mean of those before it, by how long ago they were."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def gaps(self, times: Tensor) -> Tensor:
        return (times[:, :, None] - times[:, None]).abs()

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        times = torch.arange(x.shape[1]).expand(len(x), -1) if times is None else times
        decay = (-self.gaps(times).to(x)).exp().tril()
        return x + decay @ self.layer(x)


class KeptByShape(Decayed):
    kept: Tensor | None = None

    def gaps(self, times: Tensor) -> Tensor:
        if self.kept is None or self.kept.shape[:2] != times.shape:
            self.kept = super().gaps(times)  # here
        return self.kept


class KeptByLength(Decayed):
    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[tuple[int, torch.dtype], Tensor] = {}

    def gaps(self, times: Tensor) -> Tensor:
        key = times.shape[1], times.dtype
        if key not in self.memo:
            self.memo[key] = super().gaps(times)  # here
        return self.memo[key]


class KeptInABuffer(Decayed):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", None, persistent=False)

    def gaps(self, times: Tensor) -> Tensor:
        if self.kept is not None and self.kept.shape[:2] == times.shape:
            return self.kept
        self.kept = super().gaps(times)  # here
        return self.kept


_OF_ALL: dict[torch.Size, Tensor] = {}


class KeptForAll(Decayed):
    """In a table of the file, which modules made later read too."""

    def gaps(self, times: Tensor) -> Tensor:
        if times.shape not in _OF_ALL:
            _OF_ALL[times.shape] = super().gaps(times)  # here
        return _OF_ALL[times.shape]


class OfTheLargest(Decayed):
    """Times as shares of the largest of the batch."""

    def gaps(self, times: Tensor) -> Tensor:
        return super().gaps(times / times.max().clamp(min=1e-6))


class AmongRows(Decayed):
    """Times relative to the mean of the batch."""

    def gaps(self, times: Tensor) -> Tensor:
        return super().gaps(times) / times.double().mean()


class Unread(Decayed):
    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        return super().forward(x)


class KeptByValues(Decayed):
    kept: tuple[Tensor, Tensor] | None = None

    def gaps(self, times: Tensor) -> Tensor:
        if self.kept is None or not torch.equal(self.kept[0], times):
            self.kept = times, super().gaps(times)
        return self.kept[1]


class KeepsADefault(Decayed):
    """The positions of a length alone, and only where no others are given."""

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[int, Tensor] = {}

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        if times is None:
            times = self.memo.setdefault(x.shape[1], torch.arange(x.shape[1])).expand(len(x), -1)
        return super().forward(x, times)


class Session(KeptByShape):
    """The times of one session, which a method ends."""

    def reset_session(self) -> None:
        self.kept = None


class Stream(Decayed):
    """Goes on with the sum of what earlier calls were given."""

    total: Tensor | float = 0.0

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        y = super().forward(x, times) + self.total
        self.total = y.mean()
        return y


class CallerKeeps(Decayed):
    def forward(self, x: Tensor, times: Tensor | None = None, cache: dict[str, Tensor] | None = None) -> Tensor:
        times = torch.arange(x.shape[1]).expand(len(x), -1) if times is None else times
        cache = {} if cache is None else cache
        gaps = cache.setdefault("gaps", self.gaps(times))
        return x + (-gaps.to(x)).exp().tril() @ self.layer(x)


class FitsItself(Decayed):
    """Takes its scale from the first batch."""

    scale: Tensor | None = None

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        y = super().forward(x, times)
        self.scale = y.std() if self.scale is None else 0.9 * self.scale + 0.1 * y.std()
        return y / self.scale


class FitsToTimes(Decayed):
    """Takes the middle of times from those that are given first, whatever their shape."""

    middle: Tensor | None = None

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        y = super().forward(x, times)
        if times is None:
            return y
        self.middle = times.double().mean() if self.middle is None else self.middle
        return y + (times - self.middle).to(x).cos()[..., None]


class Part(nn.Module):
    """Sines of positions [S], kept until there are more."""

    def __init__(self, is_kept: bool) -> None:
        super().__init__()
        self.is_kept, self.longest, self.table = is_kept, 0, torch.zeros(0)

    def forward(self, positions: Tensor) -> Tensor:
        if len(positions) <= self.longest:
            return self.table[: len(positions)]
        table = positions[:, None].double().mul(0.3).sin()  # here
        self.table, self.longest = table, len(positions) if self.is_kept else 0
        return table


class Placed(nn.Module):
    def __init__(self, is_kept: bool = True) -> None:
        super().__init__()
        self.layer, self.part = nn.Linear(WIDTH, WIDTH), Part(is_kept)

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        places = torch.arange(x.shape[1]) if position_ids is None else position_ids
        return self.layer(x) + self.part(places.reshape(-1)[-x.shape[1] :]).to(x)


class Masked(nn.Module):
    """Attention under a mask [B, S] of what is visible."""

    def __init__(self, is_kept: bool = True) -> None:
        super().__init__()
        self.layer, self.is_kept, self.memo = nn.Linear(WIDTH, WIDTH), is_kept, dict[torch.Size, Tensor]()

    def bias(self, mask: Tensor) -> Tensor:
        if not self.is_kept or mask.shape not in self.memo:
            self.memo[mask.shape] = (~mask[:, None].bool()).double() * -1e9  # here
        return self.memo[mask.shape]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        return x + (self.layer(x) @ x.mT + self.bias(mask).to(x)).softmax(-1) @ x


class Distances(nn.Module):
    """A bias by distances [B, S, S] that a caller gives."""

    def __init__(self, is_kept: bool = True) -> None:
        super().__init__()
        self.layer, self.is_kept, self.kept = nn.Linear(WIDTH, WIDTH), is_kept, None

    def forward(self, x: Tensor, distances: Tensor | None = None) -> Tensor:
        if distances is None:
            return self.layer(x)
        if self.kept is None or self.kept.shape != distances.shape or not self.is_kept:
            self.kept = (-distances).exp()  # here
        if distances.shape != (len(x), x.shape[1], x.shape[1]):
            raise ValueError(distances.shape)
        return self.layer(x) + self.kept.to(x) @ x


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD223"), small_subject(make, width=WIDTH, max_length=64))


def is_marked(result: Result) -> bool:
    (finding,) = result.findings
    return linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


@pytest.mark.parametrize("make", [KeptByShape, KeptByLength, KeptInABuffer, KeptForAll, Placed, Masked, Distances])
def test_an_argument_that_is_kept_by_its_shape_is_found(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert is_marked(result), result
    assert "after a call with other values of " in result.findings[0].message


def test_an_argument_that_the_subject_gives_is_found() -> None:
    class Asking(KeptByShape):
        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            return super().forward(x, times)

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        return module(x, times=torch.linspace(0, 1, x.shape[1]).expand(len(x), -1))

    subject = replace(small_subject(Asking, width=WIDTH, max_length=64), forward=forward)
    assert is_marked(run_check(registry.load("FWD223"), subject))


HEALTHY: tuple[Callable[[], nn.Module], ...] = (Decayed, KeptByValues, KeepsADefault, Session, Stream, CallerKeeps)
HEALTHY += (
    OfTheLargest,
    AmongRows,
    Unread,
    FitsItself,
    FitsToTimes,
    lambda: Placed(False),
    lambda: Masked(False),
    lambda: Distances(False),
)
HEALTHY += (lambda: nn.Linear(WIDTH, WIDTH),)


@pytest.mark.parametrize("make", HEALTHY)
def test_what_is_kept_rightly_or_by_intent_passes(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    of_arguments = [each for each in result.findings if "after a call with other values" in each.message]
    assert not of_arguments, result
    assert result.verdict is Verdict.PASS or make in (Stream, FitsItself)
