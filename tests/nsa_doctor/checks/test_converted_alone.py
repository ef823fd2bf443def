"""An argument that a function converts and makes nothing of is found; one that is used, or kept for others, is not."""

import linecache
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module], **more: Any) -> Result:
    return run_check(registry.load("FWD238"), small_subject(make, width=DIM, max_length=64, **more))


def default(value: Any, other: Callable[[], Any]) -> Any:
    return value if value is not None else other()


def padded(t: Tensor) -> Tensor:
    return t.reshape(-1, 1, 1)


WRITTEN: list[Any] = []


def noted(t: Tensor) -> Tensor:
    WRITTEN.append(t)
    return t


class Levels:
    """Noise put from one level to another, by something that is no module."""

    def sigma(self, t: Tensor) -> Tensor:
        return t.sin().reshape(-1, 1, 1)

    def move(self, x: Tensor, from_t: float, to_t: float) -> Tensor:
        if isinstance(from_t, float):
            from_t = torch.full((len(x),), from_t)
        if isinstance(to_t, float):
            to_t = torch.full((len(x),), to_t)
        sigma = self.sigma(from_t)
        sigma_to = self.sigma(from_t)  # here
        return x * (1 + sigma_to) / (1 + sigma)


class First(Levels):
    """The first of two is the one left out."""

    def shift(self, x: Tensor, from_t: float, to_t: float) -> Tensor:
        from_t, to_t = torch.tensor([from_t]), torch.tensor([to_t])
        sigma = self.sigma(to_t)  # here
        sigma_to = self.sigma(to_t)
        return x * (1 + sigma_to) / (1 + sigma)


def moved(x: Tensor, scale: float, bias: Tensor) -> Tensor:
    assert bias.ndim == 3
    bias = padded(bias).to(x.dtype)  # here
    return x * scale


class Whole(nn.Module):
    """A module around one way to lose an argument, or not to."""

    def __init__(self, way: Callable[["Whole", Tensor], Tensor]) -> None:
        super().__init__()
        self.way, self.mix, self.levels, self.first = way, nn.Linear(DIM, DIM), Levels(), First()

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, self.mix(x))

    def masked(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            mask = torch.ones_like(x[..., 0]).bool()  # here
        elif mask.ndim == 3:
            mask = mask[:, 0]
        if mask.shape != x.shape[:2]:
            raise ValueError("of another shape")
        return x

    def chained(self, x: Tensor, time: float) -> Tensor:
        time = default(time, lambda: 0.5)  # here
        embedded = torch.tensor(time).sin()
        embedded = embedded * 2
        return x

    def mapped(self, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
        start, end = map(padded, (start, end))  # here
        return x + start

    def turned(self, x: Tensor, hidden: Tensor) -> Tensor:
        hidden = 1 - hidden  # here
        return x

    def put_in_part(self, x: Tensor, gain: float | None) -> Tensor:
        if gain is None:
            gain = 1.0  # here
        elif gain > 1:
            gain = float(gain)
        return x


FAULTY: dict[str, Callable[[Whole, Tensor], Tensor]] = {
    "levels": lambda whole, x: whole.levels.move(x, 0.2, 0.8),
    "first": lambda whole, x: whole.first.shift(x, 0.2, 0.8),
    "function": lambda whole, x: moved(x, 2.0, torch.ones(1, 1, DIM)),
    "mask": lambda whole, x: whole.masked(x, torch.ones(x.shape[:2])),
    "chain": lambda whole, x: whole.chained(x, 0.3),
    "mapped": lambda whole, x: whole.mapped(x, torch.ones(1), torch.ones(1)),
    "turned": lambda whole, x: whole.turned(x, torch.ones(1)),
    "in part": lambda whole, x: whole.put_in_part(x, 2.0),
}


@pytest.mark.parametrize("way", FAULTY.values(), ids=FAULTY)
def test_an_argument_that_is_converted_alone_is_found(way: Callable[[Whole, Tensor], Tensor]) -> None:
    (finding,) = examined(lambda: Whole(way)).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")
    assert "makes nothing of it" in finding.message


class Asked(nn.Module):
    """What others that stand in its place ask for."""

    @abstractmethod
    def embed(self, x: Tensor, time: float) -> Tensor:
        raise NotImplementedError


class Timeless(Asked):
    def embed(self, x: Tensor, time: float) -> Tensor:
        time = float(time)
        return x


class Uses(nn.Module):
    """Arguments that come to something, or that are there for another reason."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.mix, self.timeless, self.kept = name, nn.Linear(DIM, DIM), Timeless(), None

    def forward(self, x: Tensor) -> Tensor:
        time = torch.full((len(x),), 0.5)
        y: Tensor = getattr(self, self.name)(self.mix(x), time)
        return y

    def handed_on(self, x: Tensor, time: Tensor) -> Tensor:
        time = padded(time)
        return torch.add(x, time)

    def answered(self, x: Tensor, time: Tensor) -> Tensor:
        return self._answered(x, time)[0]

    def _answered(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        time = padded(time)
        return x, time

    def decides(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()
        if bool((time > 2).any()):
            return x * 2
        return x

    def refuses(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()
        if bool((time > 2).any()):
            raise ValueError("times end at 2")
        return x

    def refuses_any(self, x: Tensor, time: Tensor) -> Tensor:
        time = default(time, lambda: time)
        assert time is not None
        return x

    def keeps(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()
        self.kept = time
        return x

    def notes(self, x: Tensor, time: Tensor) -> Tensor:
        time = noted(time)
        return x

    def writes(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.mul_(2)
        return x

    def adds(self, x: Tensor, time: Tensor) -> Tensor:
        time += 1
        return x

    def asks_itself(self, x: Tensor, time: Tensor) -> Tensor:
        time = self.embedded(time)
        return x

    def embedded(self, time: Tensor) -> Tensor:
        self.kept = time
        return time

    def drops(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()
        del time
        return x

    def says_so(self, x: Tensor, time: Tensor) -> Tensor:
        """`time` is not used: it is taken for compatibility."""
        time = time.float()
        return x

    def says_so_beside(self, x: Tensor, time: Tensor) -> Tensor:
        # unused, as other blocks take it
        time = time.float()
        return x

    def closes_over(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()

        def inner(y: Tensor) -> Tensor:
            return y + time.mean()

        return inner(x)

    def loops(self, x: Tensor, time: Tensor) -> Tensor:
        for _ in range(2):
            x = x + time.mean()
            time = time * 2
        return x

    def by_locals(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()
        return x + locals()["time"].mean()

    def taken_apart(self, x: Tensor, time: Tensor) -> Tensor:
        x, time = torch.broadcast_tensors(x, time[:, None, None])
        return x

    def mapped(self, x: Tensor, time: Tensor) -> Tensor:
        time, other = map(noted, (time, x))
        return other

    def switched(self, x: Tensor, time: Tensor, is_last: bool = True) -> Tensor:
        is_last = bool(is_last)
        return x + time.mean()

    def put_to_none(self, x: Tensor, time: Tensor) -> Tensor:
        time = None  # noqa: F841
        return x

    def put_to_a_number(self, x: Tensor, time: Tensor) -> Tensor:
        time = 1.0  # noqa: F841
        return x

    def moved_on(self, x: Tensor, time: Tensor, step: float = 0.1) -> Tensor:
        for _ in range(2):
            x = x + step * x.tanh()
            time = time + step
        return x

    def moved_back(self, x: Tensor, time: Tensor) -> Tensor:
        time = x.shape[1] + time - 1
        return x

    def moved_and_held(self, x: Tensor, time: Tensor) -> Tensor:
        while len(x) < 1:
            time = (time * 0.5).clamp(min=1e-3)
        return x

    def of_an_api(self, x: Tensor, time: Tensor) -> Tensor:
        """`time` is taken for API parity and does nothing."""
        time = time.float()
        return x

    def for_consistency(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()  # for consistency
        return x

    def not_needed(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()  # not needed: all are alike
        return x

    def of_a_signature(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()  # the signature of a kernel
        return x

    def without_order(self, x: Tensor, time: Tensor) -> Tensor:
        time = time.float()
        # NoPE
        return x

    def mapped_over_rows(self, x: Tensor, time: Tensor) -> Tensor:
        y: Tensor = torch.vmap(self._row)(x, torch.arange(len(x)))
        return y

    def _row(self, x: Tensor, index: Tensor) -> Tensor:
        index = index.long()
        return x

    def left_at_none(self, x: Tensor, time: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = default(mask, lambda: None)
        return x + time.mean()

    def never_converted(self, x: Tensor, time: Tensor) -> Tensor:
        return x

    def for_others(self, x: Tensor, time: Tensor) -> Tensor:
        return self.timeless.embed(x, float(time[0]))


OTHERS = ("forward", "embedded")
NAMES = [name for name, each in vars(Uses).items() if callable(each) and name[0] != "_" and name not in OTHERS]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_used_or_is_there_for_others_is_no_finding(name: str) -> None:
    assert examined(lambda: Uses(name)).findings == ()
