"""An argument that is read only where it is None is found at its condition; usual ways to fill one in are silent."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class WrongWay(Mixing):
    def __init__(self, window: Tensor | None = None) -> None:
        super().__init__()
        if window is not None:  # here
            self.window = torch.hann_window(4)
        else:
            self.window = window


class WrongWayInOneLine(Mixing):
    def __init__(self, window: Tensor | None = None) -> None:
        super().__init__()
        self.window = window if window is None else torch.hann_window(4)  # here


class InAMethodThatNoPassComesTo(Mixing):
    def extend(self, x: Tensor, cache: Tensor | None = None) -> Tensor:
        if cache != None:  # noqa: E711  # here
            keys = x[:, -4:]
            keys = self.mix(keys)
        else:
            keys = cache
        return keys


class FilledIn(Mixing):
    def __init__(self, window: Tensor | None = None, size: int | None = None) -> None:
        super().__init__()
        if window is None:
            window = torch.hann_window(4)
        self.window = window
        self.size = size if size is not None else 4
        self.sizes = [4] if size is None else [size]


class Kept(Mixing):
    """What is asked for None is handed to a call, is said to be left out, or gives way to another variable."""

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.state, self.size = torch.zeros(1, 1, WIDTH), 4

    def step(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        if state is None:
            y, self.state = self.memory(x, state)
        else:
            y, self.state = self.memory(x, self.state)
        return y

    def masked(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            self.mask = mask
        else:
            warnings.warn("the mask is left out", stacklevel=2)
            self.mask = None
        return x

    def sized(self, size: int | None = None) -> int | None:
        return size if size is None else self.size


class HandedOn(Mixing):
    """What is given is read behind the condition, or refused, or said to be left out."""

    def attend(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return self.plain(x, mask)
        weights = self.mix(x) * 2
        return weights * mask

    def plain(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            raise NotImplementedError("no mask is served")
        return self.attend(x, mask)

    def warned(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            warnings.warn("the mask is left out", stacklevel=2)
        else:
            x = self.plain(x, mask)
        return x

    def asked(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Whether there is one is all that counts."""
        return self.mix(x) if mask is None else -self.mix(x)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD238"), small_subject(make, width=WIDTH, max_length=80))


@pytest.mark.parametrize("make", [WrongWay, WrongWayInOneLine, InAMethodThatNoPassComesTo])
def test_a_condition_that_stands_the_wrong_way_round_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = examined(make).findings
    assert "only where it is None" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", [FilledIn, HandedOn, Kept])
def test_an_argument_that_is_filled_in_or_handed_on_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()
