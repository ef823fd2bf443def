"""What drops and does not scale, or scales wrongly, is found; every usual way to drop is silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class DropPath(nn.Module):
    """Drops rows, and divides what is left by a number."""

    def __init__(self, rate: float = 0.2, divisor: float = 1.0) -> None:
        super().__init__()
        self.rate, self.divisor = rate, divisor

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(x.shape[0], 1, 1, device=x.device) < 1 - self.rate) / self.divisor


class StochasticDepth(DropPath):
    """Scales in evaluation, as the first of its kind did."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else x * (1 - self.rate)


class UnscaledPath(DropPath):
    """Is asked not to scale."""

    scale_by_keep = True

    def __init__(self) -> None:
        super().__init__()
        self.scale_by_keep = False


class LockedDropout(nn.Module):
    """One mask for all tokens of a row."""

    def forward(self, x: Tensor) -> Tensor:
        return x * functional.dropout(x.new_ones(len(x), 1, x.shape[-1]), 0.3, self.training)


class BatchDepth(nn.Module):
    """Drops a whole batch, or nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(()) < 0.9) / 0.9 if self.training else x


class DropBlock(nn.Module):
    """Drops stretches, and keeps the mean of each call."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        holes = functional.max_pool1d((torch.rand(x.shape[0], 1, x.shape[1]) < 0.05).to(x), 3, 1, 1)
        kept = 1 - holes.mT
        return x * kept * kept.numel() / kept.sum()


class WordDropout(DropPath):
    """Drops whole tokens, of which no mean is asked."""


class DropTooLittle(DropPath):
    """Keeps all of it, and divides by more than one."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(x.shape[0], 1, 1) < 1 + self.rate) / (1 + self.rate)


class DropNoise(DropPath):
    """Multiplies by noise around one, and sets nothing to zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 0.1 * torch.randn(x.shape)) if self.training else x


class Droplet(nn.Module):
    """Has another size in training, and no share to drop."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 if self.training else x


class Dropped(nn.Module):
    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(WIDTH, WIDTH), drop

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.layer(x))


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD255"), small_subject(lambda: Dropped(make()), width=WIDTH))


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (DropPath, "leaves 0.8"),
        (lambda: DropPath(0.2, 0.2), "leaves 4.0"),
        (lambda: StochasticDepth(0.2, 0.8), "where evaluation leaves 0.8"),
        (lambda: DropPath(0.01), "leaves 0.99"),
        (DropTooLittle, "sets none of its input to zero in training mode and leaves 0.833"),
        (lambda: DropTooLittle(0.005), "leaves 0.995"),
    ],
    ids=["unscaled", "by what is dropped", "scaled twice", "hardly any", "keeps too much", "keeps a little too much"],
)
def test_another_mean_is_found(make: Callable[[], nn.Module], left: str) -> None:
    (finding,) = examined(make).findings
    assert left in finding.message
    assert finding.where.file == __file__
    assert finding.where.function == "forward"


@pytest.mark.parametrize(
    "make",
    [
        lambda: DropPath(0.2, 0.8),
        lambda: DropPath(0.0),
        StochasticDepth,
        UnscaledPath,
        LockedDropout,
        DropBlock,
        BatchDepth,
        WordDropout,
        DropNoise,
        Droplet,
        lambda: nn.Dropout(0.5),
    ],
    ids=[
        "scaled",
        "none",
        "in evaluation",
        "set not to",
        "locked",
        "blocks",
        "of a batch",
        "words",
        "noise",
        "no share",
        "of torch",
    ],
)
def test_the_same_mean_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()
