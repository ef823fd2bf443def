"""Modules whose float32 is far from float64, each through one operation, and one that rounds as it has to."""

from torch import Tensor, nn


class Variance(nn.Module):
    """Normalises by a difference of squares, which cancels far from zero."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()  # here
        return centred * (variance.clamp(min=0) + 1e-6).rsqrt()


class Scores(nn.Module):
    """Attention whose scores are cast to half precision, in which large ones overflow."""

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(-2, -1)
        scores = scores.half()  # here
        return scores.softmax(-1).to(x.dtype) @ x


class Centred(nn.Module):
    """The same as `Variance`, by the squares of differences."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class Whole(nn.Module):
    """A part behind a projection of what is centred."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.before, self.part = nn.Linear(32, 32), part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x + self.before(x - x.mean(-1, keepdim=True)))


def variance() -> nn.Module:
    return Whole(Variance())


def scores() -> nn.Module:
    return Whole(Scores())


def centred() -> nn.Module:
    return Whole(Centred())
