"""Times that are rounded before differences are taken are found at their line; other uses of times are silent."""

import linecache
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module], **more: Any) -> Result:
    return run_check(registry.load("FWD275"), small_subject(make, width=DIM, max_length=64, **more))


class Timed(nn.Module):
    """A layer beside what is made of the time of each token, which `elapsed` gives [B, S]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.to_shift = nn.Linear(DIM, DIM), nn.Linear(1, DIM)

    def elapsed(self, times: Tensor) -> Tensor:
        return (times.double() - times[:, :1].double()).float()

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        if times is None:
            times = torch.arange(x.shape[1], dtype=torch.float64).expand(len(x), -1)
        return self.layer(x) + self.to_shift(self.elapsed(times).to(x.dtype)[..., None]).tanh()


class CastFirst(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        return times.float() - times[:, :1].float()  # here


class CastToItsDtype(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        times = times.to(self.layer.weight.dtype)  # here
        return torch.diff(times, dim=1, prepend=times[:, :1])


class BehindAConstant(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        times = times.to(self.layer.weight)  # here
        return torch.diff(times, dim=1, prepend=times[:, :1] - 0.4)


class InHours(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        hours = times.float() / 3600  # here
        return torch.log1p((hours - hours[:, :1]) * 3600)


class OfPairs(nn.Module):
    """Attention that forgets by the time between tokens."""

    def __init__(self, is_early: bool = True) -> None:
        super().__init__()
        self.qkv, self.rate, self.is_early = nn.Linear(DIM, 3 * DIM), nn.Parameter(torch.tensor(0.2)), is_early

    def forward(self, x: Tensor, event_times: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / DIM**0.5
        if event_times is not None:
            times = event_times.to(x.dtype) if self.is_early else event_times.double()  # here
            scores = scores - self.rate * (times[:, :, None] - times[:, None, :]).abs().to(x.dtype)
        return scores.softmax(-1) @ v


class OfSeconds(Timed):
    """It takes whole seconds alone."""

    def elapsed(self, times: Tensor) -> Tensor:
        if times.is_floating_point():
            raise TypeError("whole seconds")
        return times.float() - times[:, 0].float()[:, None]  # here

    def forward(self, x: Tensor, timestamps: Tensor | None = None) -> Tensor:
        return super().forward(x, torch.arange(x.shape[1])[None] if timestamps is None else timestamps)


class DividedSeconds(OfSeconds):
    def elapsed(self, times: Tensor) -> Tensor:
        if times.is_floating_point():
            raise TypeError("whole seconds")
        minutes = times / 64  # here
        return (minutes - minutes[:, :1]) * 64


class WithAChannel(Timed):
    """It takes [B, S, 1]."""

    def elapsed(self, times: Tensor) -> Tensor:
        times = times[..., 0] if times.ndim == 3 else times[:, :, None, None]
        times = times.float()  # here
        return times - times.amin(1, keepdim=True)


class InItsLoss(Timed):
    """A healthy forward, and a loss by the gaps."""

    def loss(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        output = self(x, times)
        if times is None:
            return output.square().mean()
        times = times.float()  # here
        return (output[:, 1:].square().mean(-1) * times.diff(dim=1)).mean()


class InItsLossOfTargets(Timed):
    def loss(self, x: Tensor, targets: Tensor, times: Tensor | None = None) -> Tensor:
        missing = (self(x, times).mean(-1) - targets).square()
        if times is not None:
            seen = times.to(x.dtype)  # here
            missing = missing * torch.exp(0.05 * (seen - seen[:, -1:]))
        return missing.mean()


class InNumpy(Timed):
    """Of what numpy does no operation is seen: it is said of forward."""

    def elapsed(self, times: Tensor) -> Tensor:
        seen = times.numpy().astype(np.float32)
        return torch.from_numpy(seen - seen[:, :1])


class OfHours(Timed):
    """A unit matters little to it, and thousands do."""

    def elapsed(self, times: Tensor) -> Tensor:
        seen = times.float()  # here
        return (seen - seen[:, :1]) * 2.0**-12


FAULTY = [
    *(CastFirst, CastToItsDtype, BehindAConstant, InHours, OfPairs, OfSeconds, DividedSeconds, WithAChannel),
    *(InItsLoss, InItsLossOfTargets, OfHours),
]


@pytest.mark.parametrize("make", FAULTY)
def test_times_that_are_rounded_first_are_found_at_the_line(make: type[nn.Module]) -> None:
    result = examined(make)
    assert result.verdict is Verdict.FAIL
    line = linecache.getline(result.findings[0].where.file, result.findings[0].where.line)
    assert line.rstrip().endswith("# here")


def test_where_no_operation_is_seen_it_is_said_of_forward() -> None:
    result = examined(InNumpy)
    assert result.verdict is Verdict.FAIL
    assert result.findings[0].where.function == "forward"


def test_a_model_in_bfloat16_is_asked_in_float32() -> None:
    assert examined(CastToItsDtype, dtype="bfloat16").verdict is Verdict.FAIL


def test_a_cast_to_float32_is_found_in_a_model_of_float64() -> None:
    assert examined(lambda: CastFirst().double(), dtype="float64").verdict is Verdict.FAIL
    assert examined(lambda: CastToItsDtype().double(), dtype="float64").verdict is Verdict.PASS


class Stream(Timed):
    """The time of the last token is kept for the next call."""

    kept = torch.float32

    def forward(self, x: Tensor, times: Tensor | None = None, last: Tensor | None = None) -> Tensor:
        if times is None:
            times = torch.arange(x.shape[1], dtype=torch.float64).expand(len(x), -1)
        gaps = times.double().diff(dim=1, prepend=times[:, :1] if last is None else last)
        self.last = times[:, -1:].to(self.kept)  # here
        return self.layer(x) + self.to_shift(gaps.to(x.dtype)[..., None]).tanh()


class ExactStream(Stream):
    kept = torch.float64


def streamed(make: Callable[[], nn.Module]) -> Result:
    def decoded(module: Any, x: Tensor, last: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return module(x, last=last), module.last

    return examined(make, prefill=decoded, step=decoded)


def test_a_time_that_a_step_keeps_in_float32_is_found() -> None:
    (finding,) = streamed(Stream).findings
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")
    assert "of forward, in steps, loses digits" in finding.message
    assert streamed(ExactStream).verdict is Verdict.PASS


class AskedFor(Timed):
    """Times are asked for, and whoever calls it gives some of its own."""

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        seen = times.float()  # here
        return self.layer(x) + self.to_shift((seen - seen[:, :1])[..., None]).tanh()


class AskedForExactly(AskedFor):
    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        return super().forward(x, times - times[:, :1])


@pytest.mark.parametrize("by_name", [True, False])
def test_times_that_a_caller_gives_are_changed(by_name: bool) -> None:
    def call(module: nn.Module, x: Tensor) -> Tensor:
        times = torch.arange(x.shape[1]).expand(len(x), -1)
        output: Tensor = module(x, times=times) if by_name else module(x, times)
        return output

    def judged(make: Callable[[], nn.Module]) -> Verdict:
        subject = replace(small_subject(make, width=DIM, max_length=64), forward=call)
        return run_check(registry.load("FWD275"), subject).verdict

    assert judged(AskedFor) is Verdict.FAIL
    assert judged(AskedForExactly) is Verdict.PASS


class ByDifferences(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        return times.diff(dim=1, prepend=times[:, :1]).float()


class InDoubleHours(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        hours = times.double() / 3600
        return ((hours - hours[:, :1]) * 3600).float()


class SumOfGaps(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        return times.diff(dim=1, prepend=times[:, :1]).clamp(0, 5).float().cumsum(1)


class OfFeatures(Timed):
    """Times as they are are a feature."""

    def elapsed(self, times: Tensor) -> Tensor:
        return torch.log1p(times.float())


class OfALearnedScale(Timed):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(-3.0))

    def elapsed(self, times: Tensor) -> Tensor:
        return times.float() * self.scale + self.offset


class Saturated(Timed):
    def elapsed(self, times: Tensor) -> Tensor:
        return torch.tanh(times.float() / 20)


class Waves(Timed):
    """Sinusoids of the time itself."""

    def elapsed(self, times: Tensor) -> Tensor:
        return torch.sin(times.float() * 0.7)


class OfTheDay(Timed):
    """The day of the week, and gaps that keep their digits."""

    def elapsed(self, times: Tensor) -> Tensor:
        day = (times.double() / 86400).floor() % 7
        return (times - times[:, :1]).float() + day.float()


class OfTheYears(Timed):
    """The time in years as a feature, and gaps that keep their digits."""

    def elapsed(self, times: Tensor) -> Tensor:
        return (times - times[:, :1]).float() + times.float() / 3e7


class Rotated(nn.Module):
    """Times turn queries and keys, as positions that need not be whole do."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def turned(self, x: Tensor, times: Tensor) -> Tensor:
        angle = times.float()[..., None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
        one, other = x.chunk(2, -1)
        return torch.cat((one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()), -1)

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        times = torch.arange(x.shape[1])[None] if times is None else times
        return F.scaled_dot_product_attention(self.turned(q, times), self.turned(k, times), v)


class OfIds(Timed):
    """A table of times that are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, DIM)

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        return self.layer(x) if time is None else self.layer(x) + self.table(time)


class OfDiffusion(Timed):
    """One time for each row."""

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        t = torch.zeros(len(x)) if t is None else t
        return self.layer(x) + torch.sin(1000 * t.float()).reshape(-1, 1, 1)


class TakenInItsDtype(Timed):
    """It takes times in the dtype of its layers alone: who casts is who calls."""

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        if times is None:
            return self.layer(x)
        return self.layer(x) + self.to_shift((times - times[:, :1])[..., None]).tanh()


class OfDeltas(Timed):
    def forward(self, x: Tensor, time_deltas: Tensor | None = None) -> Tensor:
        if time_deltas is None:
            return self.layer(x)
        seen = time_deltas.float()
        return self.layer(x) + (seen - seen[:, :1])[..., None].tanh()


class OfItsInput(nn.Module):
    """Its input is named as times are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, t: Tensor) -> Tensor:
        return self.layer(t - t[:, :1])


class Unread(Timed):
    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        return self.layer(x)


class OfTheOrder(Timed):
    """Ranks alone: only which is earlier counts."""

    def elapsed(self, times: Tensor) -> Tensor:
        return times.argsort(dim=1).argsort(dim=1).float()


HEALTHY = [
    *(Timed, ByDifferences, InDoubleHours, SumOfGaps, OfFeatures, OfALearnedScale, Saturated, Waves, OfTheDay),
    *(OfTheYears, Rotated),
]
OF_OTHERS = [OfItsInput, OfIds, OfDiffusion, TakenInItsDtype, OfDeltas, Unread, OfTheOrder]


@pytest.mark.parametrize("make", HEALTHY)
def test_other_uses_of_times_are_silent(make: type[nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


@pytest.mark.parametrize("make", OF_OTHERS)
def test_what_takes_no_times_has_nothing_to_be_examined(make: type[nn.Module]) -> None:
    result = examined(make)
    assert not result.findings
    assert result.verdict in (Verdict.PASS, Verdict.SKIP)


def test_differences_of_pairs_in_float64_are_silent() -> None:
    assert examined(lambda: OfPairs(is_early=False)).verdict is Verdict.PASS
