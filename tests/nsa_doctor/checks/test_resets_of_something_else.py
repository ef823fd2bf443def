"""A method named like a reset that is about something else is left alone; an Adapter may say which one it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.adapter import Adapter
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.caches_to_reset import (
    DIM,
    LAYERS,
    Clears,
    Grown,
    KeepsCount,
    Model,
    NoReset,
    Room,
    findings,
    subject_of,
)


class Raises(Grown):
    def reset(self) -> None:
        raise NotImplementedError


class RefusesLongOnes(Grown):
    def reset(self) -> None:
        if self.seen > 8:
            raise ValueError("a cache of so many tokens is made again")
        super().reset()


class Asks(Grown):
    def reset(self, batch_size: int, max_length: int) -> None:  # type: ignore[override]
        self.keys = [None] * LAYERS


class AsksForASize(Grown):
    """Not rows: how many there will be."""

    def reset(self, batch_size: int) -> None:  # type: ignore[override]
        self.keys = [None] * LAYERS


class OfParameters(NoReset):
    """Neither of its methods is about what it holds."""

    def reset_parameters(self) -> None:
        self.keys = [None] * LAYERS

    def empty(self) -> bool:
        return self.seen == 0

    @property
    def clear(self) -> bool:
        raise RuntimeError("not yet")


class Frees(NoReset):
    """What it holds is to be made again by its caller."""

    def clear(self) -> None:
        del self.keys, self.values


class OfHits(Clears):
    """What it counts beside."""

    def reset(self) -> None:  # type: ignore[override]
        self.calls = 0

    clear_cache = None  # type: ignore[assignment]


class NoOp(NoReset):
    def reset(self) -> None:  # type: ignore[override]
        pass


class Draft(Grown):
    """What is proposed and not yet accepted is a list beside it, which alone is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.proposed: list[int] = []

    reset = None  # type: ignore[assignment]

    def positions(self, x: Tensor) -> Tensor:
        self.proposed.append(x.shape[1])
        return super().positions(x)

    def clear(self) -> None:
        self.proposed.clear()


class ResetsItsWeights(Model):
    def reset(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter)


class ResetsItsMetrics(Model):
    """The cache is not concerned."""

    def __init__(self, kind: Any = None) -> None:
        super().__init__(kind)
        self.num_calls = 0

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        self.num_calls += 1
        return super().forward(x, cache)

    def reset(self) -> None:
        self.num_calls = 0


class Conv(nn.Module):
    """Nothing is left of the past after a few tokens; its own `reset` is about gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3)

    def init_state(self, batch_size: int) -> dict[str, Tensor]:
        return {"past": torch.zeros(batch_size, DIM, 2)}

    def forward(self, x: Tensor, state: dict[str, Tensor] | None = None) -> Tensor:
        past = x.new_zeros(len(x), DIM, 2) if state is None else state["past"].to(x.dtype)
        whole = torch.cat((past, x.mT), 2)
        if state is not None:
            state["past"] = whole[..., -2:]
        return self.conv(whole).mT

    def reset(self) -> None:
        self.zero_grad()


OTHERS: dict[str, Callable[[], Any]] = {
    "none": lambda: Model(NoReset),
    "it raises": lambda: Model(Raises),
    "it asks for more": lambda: Model(Asks),
    "it asks for a size": lambda: Model(AsksForASize),
    "of parameters": lambda: Model(OfParameters),
    "it frees": lambda: Model(Frees),
    "of hits": lambda: Model(OfHits),
    "nothing": lambda: Model(NoOp),
    "of a draft": lambda: Model(Draft),
    "of weights": lambda: ResetsItsWeights(NoReset),
    "of metrics": lambda: ResetsItsMetrics(NoReset),
    "of gradients": Conv,
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_resets_something_else_is_left_alone(make: Callable[[], Any]) -> None:
    subject = subject_of(make)
    assert subject.offers("step"), subject.notes
    assert (subject.offers("reset"), subject.offers("reset_rows")) == (False, False), subject.notes
    assert run_check(registry.load("DEC116"), subject).verdict is Verdict.SKIP


def given(kind: type, reset: Callable[..., Any]) -> Adapter:
    """An Adapter that says how its cache is reset."""

    def prefill(module: Any, x: Tensor) -> tuple[Tensor, Any]:
        cache = kind()
        return module(x, cache), cache

    seams = {"prefill": prefill, "step": lambda module, x, cache: (module(x, cache), cache), "reset": reset}
    return Adapter(make=lambda: Model(kind), input="embeddings", width=DIM, seams=seams)


def reset_of(module: nn.Module, cache: Any) -> Any:
    cache.reset()
    return cache


def test_an_adapter_says_how_its_cache_is_reset() -> None:
    assert findings(subject_of(lambda: given(Room, reset_of))) == ()
    (finding,) = findings(subject_of(lambda: given(KeepsCount, reset_of)))
    assert finding.where.function == "reset_of"
    assert "12 of 12" not in finding.message


def test_a_reset_that_refuses_is_left_alone() -> None:
    subject = subject_of(lambda: Model(RefusesLongOnes))
    assert subject.offers("reset")
    found = run_check(registry.load("DEC116"), subject)
    assert (found.verdict, found.findings) == (Verdict.SKIP, ())
    assert "made again" in (found.reason or "")
