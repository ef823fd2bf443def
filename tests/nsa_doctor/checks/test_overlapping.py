"""Frames that overlap and are added up again come back at their places (FWD271)."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, SIZE, HOP = 8, 6, 3


def frames_of(x: Tensor) -> Tensor:
    """[B, S, W] as [B, N, SIZE, W], a hop before and enough behind."""
    behind = -x.shape[1] % HOP + HOP
    return pad(x, (0, 0, HOP, behind)).unfold(1, SIZE, HOP).transpose(2, 3).contiguous()


def added(frames: Tensor) -> Tensor:
    rows, count, _, width = frames.shape
    one = frames[:, :, :HOP].reshape(rows, count * HOP, width)
    other = frames[:, :, HOP:].reshape(rows, count * HOP, width)
    return pad(one, (0, 0, 0, HOP)) + pad(other, (0, 0, HOP, 0))


class Framed(nn.Module):
    """A layer over frames, whose sum is taken from after the hop that was put before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def segment(self, x: Tensor) -> Tensor:
        return frames_of(x)

    def overlap_add(self, frames: Tensor, length: int) -> Tensor:
        return 0.5 * added(frames)[:, HOP : HOP + length]

    def forward(self, x: Tensor) -> Tensor:
        return self.overlap_add(self.layer(self.segment(x)).tanh(), x.shape[1])


class Late(Framed):
    def overlap_add(self, frames: Tensor, length: int) -> Tensor:
        return 0.5 * added(frames)[:, :length]  # here


class Early(Framed):
    def overlap_add(self, frames: Tensor, length: int) -> Tensor:
        whole = 0.5 * added(frames)
        return pad(whole, (0, 0, 0, HOP))[:, HOP + 1 : HOP + 1 + length]  # here


class Windowed(Framed):
    """Each frame is weighted, and the sum is not put right."""

    def segment(self, x: Tensor) -> Tensor:
        return frames_of(x) * torch.hann_window(SIZE + 2)[1:-1, None].to(x)

    def overlap_add(self, frames: Tensor, length: int) -> Tensor:
        return added(frames)[:, HOP : HOP + length]


class Mixed(Framed):
    """Its sum goes through a layer."""

    def overlap_add(self, frames: Tensor, length: int) -> Tensor:
        return self.layer(added(frames)[:, :length])


def examined(make: type[nn.Module]) -> Result:
    return run_check(registry.load("FWD271"), small_subject(make, width=WIDTH, max_length=80))


@pytest.mark.parametrize(("make", "words"), [(Late, "3 places later"), (Early, "1 place earlier")])
def test_frames_that_come_back_elsewhere_are_found(make: type[nn.Module], words: str) -> None:
    (finding,) = examined(make).findings
    assert words in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize("make", [Framed, Windowed, Mixed])
def test_those_that_come_back_in_place_or_as_something_else_are_silent(make: type[nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS
