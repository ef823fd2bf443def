"""Parts named after dropping that drop nothing are found; those that drop, or do not yet, are silent."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core.finding import Verdict
from tests.nsa_doctor.checks.test_dropout import DIM, Layers, examined


class DropPath(nn.Module):
    """Drops rows in training, where `is_dropping(self)`."""

    def __init__(self, is_dropping: Callable[["DropPath"], bool], rate: float = 0.1) -> None:
        super().__init__()
        self.rate, self.is_dropping = rate, is_dropping

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.is_dropping(self):
            return x
        keep = 1 - self.rate
        return x * (torch.rand(len(x), 1, 1) < keep) / keep


class DropsNone(DropPath):
    """Draws numbers of which none is large enough."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1) < 1 + self.rate)


class Residual(nn.Module):
    """A layer behind `drop`, called where it `is_calling`."""

    def __init__(self, drop: nn.Module, is_calling: bool = True) -> None:
        super().__init__()
        self.mix, self.path, self.is_calling = nn.Linear(DIM, DIM), drop, is_calling

    def forward(self, x: Tensor) -> Tensor:
        return self.called(self.mix(x)) if self.is_calling else self.mix(x)

    def called(self, x: Tensor) -> Tensor:
        return self.path(x)


class DropPathLater(DropPath):
    """Drops nothing in its first calls."""

    def __init__(self) -> None:
        super().__init__(lambda each: each.num_steps > 1e6)
        self.num_steps = 0


class DropPathOff(DropPath):
    """Is switched off."""

    def __init__(self) -> None:
        super().__init__(lambda each: each.is_enabled)
        self.is_enabled = False


class DropBlock(DropPath):
    """Leaves maps alone that are smaller than its blocks."""

    def __init__(self) -> None:
        super().__init__(lambda _: False)


class TokenDrop(DropPath):
    """Leaves tokens out where there are many."""

    def __init__(self) -> None:
        super().__init__(lambda _: False)


def of_one_draw() -> nn.Module:
    """A whole batch is dropped, or nothing."""

    class BatchDrop(DropPath):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0 if self.training and torch.rand(()) < self.rate else x

    return Layers(lambda: Residual(BatchDrop(lambda _: True, 0.05)))


def of_layers() -> nn.Module:
    """Whole layers are left out of some calls."""

    class LayerDrop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.layers = 0.2, nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x if self.training and random.random() < self.p else layer(x)
            return x

    return LayerDrop()


def recomputed() -> nn.Module:
    """Behind a checkpoint."""

    class Recomputed(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    return Layers(lambda: Recomputed(DropPath(lambda each: each.rate > 0)))


def shared() -> nn.Module:
    """One part in two places."""
    drop = DropPath(lambda each: each.rate > 0)
    return Layers(lambda: Residual(drop))


FAULTY = {
    "a part that asks for zero": (
        lambda: Layers(lambda: Residual(DropPath(lambda each: each.rate == 0))),
        "0.1 that layers.0.path (and 1 more of its class) holds as rate is not applied in training mode: 133 calls",
    ),
    "a part that draws in vain": (
        lambda: Layers(lambda: Residual(DropsNone(lambda _: True, 0.3))),
        "0.3 that layers.0.path (and 1 more of its class) holds as rate is not applied in training mode: 40 calls",
    ),
    "a part that is not called": (
        lambda: Layers(lambda: Residual(DropPath(lambda each: each.rate > 0), is_calling=False)),
        "0.1 that layers.0 (and 1 more of its class) holds as path is not applied in training mode; its forward draws",
    ),
}


@pytest.mark.parametrize(("make", "said"), FAULTY.values(), ids=FAULTY.keys())
def test_a_part_that_drops_nothing_is_found(make: Callable[[], nn.Module], said: str) -> None:
    (finding,) = examined(make).findings
    assert finding.message.startswith(f"the dropout of {said}")
    assert (finding.where.file, finding.where.function) == (__file__, "forward")


HEALTHY = {
    "a part": lambda: Layers(lambda: Residual(DropPath(lambda each: each.rate > 0))),
    "a part of none": lambda: nn.Sequential(
        Residual(DropPath(lambda each: each.rate > 0, 0.0)), Residual(DropPath(lambda each: each.rate > 0))
    ),
    "a part that drops hardly any": lambda: Residual(DropPath(lambda each: each.rate > 0, 0.001)),
    "a part for later": lambda: Layers(lambda: Residual(DropPathLater())),
    "a part that is off": lambda: Layers(lambda: Residual(DropPathOff())),
    "blocks": lambda: Layers(lambda: Residual(DropBlock())),
    "tokens": lambda: Layers(lambda: Residual(TokenDrop())),
    "nothing in its place": lambda: Layers(lambda: Residual(nn.Identity())),
    "one draw": of_one_draw,
    "recomputed": recomputed,
    "shared": shared,
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_part_that_drops_or_does_not_yet_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


def test_whole_layers_may_be_left_out() -> None:
    assert examined(of_layers).findings == ()
