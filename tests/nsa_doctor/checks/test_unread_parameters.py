"""Functions that take settings which nothing reads, and whose callee takes them too, are found; others are not."""

import functools
import linecache
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa_doctor.checks._shared.lost_arguments import lost_arguments
from nsa_doctor.core import registry
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject


def focal(x: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    return alpha * x.abs() ** gamma


def focal_of_logits(logits: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    shares = logits.sigmoid()
    return focal(shares)  # here


def scores(x: Tensor, temperature: float = 1.0, dim: int = -1) -> Tensor:
    return F.softmax(x / temperature)  # here


def focal_in_order(x: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    return focal(x, alpha, gamma)


def focal_by_name(x: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    return focal(x, gamma=gamma, alpha=alpha)


def focal_as_published(x: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """With the numbers of its paper; alpha and gamma are ignored."""
    return focal(x)


def focal_of_both(x: Tensor, alpha: float = 0.25) -> Tensor:
    return focal(x) + focal(-x)


def focal_of_all(x: Tensor, alpha: float = 0.25, **given: Any) -> Tensor:
    return focal(x, **given)


def focal_read_elsewhere(x: Tensor, alpha: float = 0.25) -> Tensor:
    return focal(x) * (1 - alpha)


def focal_deleted(x: Tensor, alpha: float = 0.25) -> Tensor:
    del alpha
    return focal(x)


def dense(x: Tensor, window: int = 4) -> Tensor:
    return windowed(x)


def local(x: Tensor, window: int = 4) -> Tensor:
    return windowed(x, window)


def windowed(x: Tensor, window: int = 8) -> Tensor:
    return x[:, -window:]


def masked(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x if mask is None else x * mask


def masked_never(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return masked(x)


@functools.wraps(len)
def size_of(x: Tensor, dim: int = 0) -> int:
    return int(x.shape[dim])


def focal_unused(x: Tensor, _alpha: float = 0.25) -> Tensor:
    return focal(x)


def focal_set(x: Tensor, alpha: float = 0.25) -> Tensor:
    alpha = 0.5
    return focal(x) * alpha


def focal_of_another(x: Tensor, alpha: float = 0.25) -> Tensor:
    focal = torch.abs
    return focal(x)


class Base(nn.Module):
    def scaled(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x * scale

    def mixed(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return self.scaled(x, scale)


class Plainly(Base):
    """Takes what the method above takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.above = nn.Linear(8, 8), Base()

    def mixed(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return self.scaled(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Scaled(nn.Module):
    """Methods of the same kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(8, 8), Plainly()

    def scaled(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x * scale

    def shifted(self, x: Tensor, shift: float = 0.0, scale: float = 1.0) -> Tensor:
        return self.scaled(x) + shift  # here

    @staticmethod
    def powered(x: Tensor, power: float = 1.0) -> Tensor:
        return x**power

    def rooted(self, x: Tensor, power: float = 0.5) -> Tensor:
        return self.powered(x)  # here

    def attend_full(self, x: Tensor, width: int = 4) -> Tensor:
        return self.attend(x)

    def attend_near(self, x: Tensor, width: int = 4) -> Tensor:
        return self.attend(x[:, -width:])

    def attend(self, y: Tensor, width: int = 0) -> Tensor:
        return y[:, width:]

    def doubled(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.scaled(x, 2 * scale)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.scaled(self.layer(x))


def test_each_call_that_leaves_settings_out_is_found_and_no_other() -> None:
    subject = replace(embedding_subject(Scaled), packages=(__name__,))
    found = list(lost_arguments(built(subject)))
    lines = linecache.getlines(__file__)
    marked = [number for number, line in enumerate(lines, 1) if line.rstrip().endswith("# here")]
    assert sorted(each.line for each in found) == marked
    said = "`focal(shares)` is not given alpha and gamma, which focal_of_logits takes and nothing reads"
    assert said in {each.what for each in found}
    assert len(run_check(registry.load("FWD242"), subject).findings) == 3
