"""Functions of which one undoes the other in an odd way, or is not meant to, whatever their names are."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.nsa_doctor.checks.inverse_pairs import (
    DIM,
    ByMode,
    ByObject,
    HandsBothWrongly,
    Normalizer,
    Patches,
    RevIN,
    Windows,
    destandardize,
    standardize,
)
from tests.nsa_doctor.checks.oddly_split_heads import HEALTHY as HEADS


class SubtractsTheLast(RevIN):
    def _statistics(self, x: Tensor) -> None:
        super()._statistics(x)
        self.mean = x[:, -1:].detach()


class HandsBoth(HandsBothWrongly):
    """Statistics are handed on in one."""

    def denormalize(self, x: Tensor, stats: tuple[Tensor, Tensor]) -> Tensor:
        mean, std = stats
        return x * std + mean


class Predicted(nn.Module):
    """Statistics of what follows are predicted of those of what was given, as SAN does."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = nn.Linear(DIM, DIM)

    def normalize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(1, keepdim=True)
        return x - mean, self.predict(mean)

    def de_normalize(self, x: Tensor, mean: Tensor) -> Tensor:
        return x + mean

    def forward(self, x: Tensor) -> Tensor:
        return self.de_normalize(*self.normalize(x))


class InputAndOutput(nn.Module):
    """Statistics of inputs and of targets."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("x_mean", 0.3), ("x_std", 2.0), ("y_mean", -0.3), ("y_std", 3.0)):
            self.register_buffer(name, torch.full((DIM,), value))

    def normalize(self, x: Tensor) -> Tensor:
        return (x - self.x_mean) / self.x_std

    def denormalize(self, y: Tensor) -> Tensor:
        return y * self.y_std + self.y_mean

    def forward(self, x: Tensor) -> Tensor:
        return self.denormalize(self.normalize(x).tanh())


class Clamped(nn.Module):
    """From -1 to 1 and back, as images are, within their range."""

    def normalize(self, x: Tensor) -> Tensor:
        return 2 * x - 1

    def denormalize(self, x: Tensor) -> Tensor:
        return (x / 2 + 0.5).clamp(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.denormalize(self.normalize(x))


class LosesLengths(nn.Module):
    """A vector's length is not given back, but one that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.ones(()) * 3)

    def normalize(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    def unnormalize(self, x: Tensor) -> Tensor:
        return x * self.size

    def forward(self, x: Tensor) -> Tensor:
        return self.unnormalize(self.normalize(x))


class OfTwoTensors(nn.Module):
    """Two tensors by one function, each with its own statistics, and one of them back."""

    def forward(self, x: Tensor) -> Tensor:
        keys, values = standardize(x), standardize(x * 3 + 1)
        return destandardize(keys[0] * values[0], *values[1:])


class WithoutVariance(RevIN):
    """The unbiased variance on one side, a large epsilon."""

    def _denormalize(self, x: Tensor) -> Tensor:
        x = (x - self.bias) / (self.weight + 1e-3)
        return x * (self.stdev + 1e-3) + self.mean


class Masked(nn.Module):
    """Only real tokens are kept and put back."""

    def pack(self, x: Tensor, keep: Tensor) -> Tensor:
        return x[keep]

    def unpack(self, x: Tensor, keep: Tensor) -> Tensor:
        y = x.new_zeros(*keep.shape, x.shape[-1])
        y[keep] = x
        return y

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.arange(x.shape[1]) < x.shape[1] - 2
        keep = keep.expand(x.shape[:2])
        return x + self.unpack(self.pack(x, keep).sin(), keep)


class MaskedStatistics(nn.Module):
    """Normalised where tokens are real, and zeros elsewhere."""

    def normalize(self, x: Tensor, keep: Tensor) -> Tensor:
        self.mean = (x * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True)
        return (x - self.mean) * keep

    def denormalize(self, x: Tensor, keep: Tensor) -> Tensor:
        return (x + self.mean) * keep

    def forward(self, x: Tensor) -> Tensor:
        keep = (torch.arange(x.shape[1]) < x.shape[1] - 2).to(x)[None, :, None]
        return self.denormalize(self.normalize(x, keep), keep)


class Overlapping(nn.Module):
    """Windows that overlap, added up."""

    def split_windows(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1)

    def merge_windows(self, x: Tensor) -> Tensor:
        return x.sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.merge_windows(self.split_windows(x))


class Shifted(nn.Module):
    """Tokens are shifted to the right, the last one is lost, and back."""

    def shift(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, 0, 1, -1))

    def unshift(self, x: Tensor) -> Tensor:
        return functional.pad(x, (0, 0, -1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.unshift(self.shift(x))


class Both(nn.Module):
    """A scan in two directions by one option."""

    def scan(self, x: Tensor, reverse: bool = False) -> Tensor:
        return x.flip(1) if reverse else x

    def forward(self, x: Tensor) -> Tensor:
        return self.scan(x) + self.scan(x, reverse=True)


class Padded(nn.Module):
    """Windows of a sequence that is filled up, and the rest cut off again."""

    def window_partition(self, x: Tensor, size: int) -> tuple[Tensor, int]:
        rest = -x.shape[1] % size
        return functional.pad(x, (0, 0, 0, rest)).reshape(-1, size, x.shape[-1]), x.shape[1]

    def window_unpartition(self, x: Tensor, length: int, rows: int) -> Tensor:
        return x.reshape(rows, -1, x.shape[-1])[:, :length]

    def forward(self, x: Tensor) -> Tensor:
        windows, length = self.window_partition(x, 7)
        return self.window_unpartition(windows.tanh(), length, len(x))


class OtherWindows(nn.Module):
    """Back to images with channels behind, of what had them in front, where sizes are the same."""

    def img2windows(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (2, -1)).permute(0, 2, 3, 4, 1).flatten(0, 1).flatten(1, 2)

    def windows2img(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2)).unflatten(2, (-1, DIM)).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        image = x[:, :1, :, None].expand(-1, DIM, -1, DIM) + torch.arange(DIM * DIM).to(x).view(DIM, 1, DIM)
        return x + self.windows2img(self.img2windows(image)).mean((1, 2))[:, None]


class Sorted(nn.Module):
    """Tokens in another order, and back by its inverse."""

    def sort(self, x: Tensor) -> tuple[Tensor, Tensor]:
        order = x[..., 0].argsort(1)
        return x.gather(1, order[..., None].expand_as(x)), order

    def unsort(self, x: Tensor, order: Tensor) -> Tensor:
        return torch.empty_like(x).scatter_(1, order[..., None].expand_as(x), x)

    def forward(self, x: Tensor) -> Tensor:
        y, order = self.sort(x)
        return self.unsort(y.sin(), order)


class Logarithms(nn.Module):
    """A transform and its inverse, of what is positive."""

    def transform(self, x: Tensor) -> Tensor:
        return x.log()

    def inverse_transform(self, x: Tensor) -> Tensor:
        return x.exp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inverse_transform(self.transform(x.abs() + 0.1) * 0.5)


class RolledOutside(nn.Module):
    """Windows that the caller shifts, and that come back in place."""

    def window_partition(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, 4)).flatten(0, 1)

    def window_reverse(self, x: Tensor, length: int) -> Tensor:
        return x.reshape(-1, length, x.shape[-1]).roll(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.pad(x, (0, 0, 0, -x.shape[1] % 4)).roll(-2, 1)
        return self.window_reverse(self.window_partition(y).sin(), y.shape[1])[:, : x.shape[1]]


class Rotated(nn.Module):
    """Vectors are turned by positions, and turned back."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)

    def unrotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return self.rotate(x, cos, -sin)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(1, x.shape[1] + 1).to(x)[:, None] * torch.arange(1, DIM // 2 + 1).to(x)
        return self.unrotate(self.rotate(x, angles.cos(), angles.sin()).tanh(), angles.cos(), angles.sin())


class OfAKind(nn.Module):
    """Statistics by name in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = {"inputs": (torch.tensor(0.5), 2.0), "targets": (torch.tensor(0.1), 3.0)}

    def normalize(self, x: Tensor, kind: str = "inputs") -> Tensor:
        mean, std = self.statistics[kind]
        return (x - mean) / std

    def denormalize(self, x: Tensor, kind: str = "targets") -> Tensor:
        mean, std = self.statistics[kind]
        return x * std + mean

    def forward(self, x: Tensor) -> Tensor:
        return self.denormalize(self.normalize(x).tanh())


class Drawn(nn.Module):
    """Noise on the way."""

    def scale(self, x: Tensor) -> Tensor:
        return x * 2 + torch.randn_like(x)

    def unscale(self, x: Tensor) -> Tensor:
        return x / 2

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * self.unscale(self.scale(x))


class Unrelated(nn.Module):
    """A scale of scores and another one of outputs."""

    def scale(self, x: Tensor, by: float) -> Tensor:
        return x * by

    def unscale(self, x: Tensor, by: float) -> Tensor:
        return x / by

    def forward(self, x: Tensor) -> Tensor:
        return self.unscale(self.scale(x, 0.25), 3.0)


class DenormedFirst(RevIN):
    """Values are given back their scale first, and normalised by their own behind."""

    def forward(self, x: Tensor, mode: str = "") -> Tensor:
        self.mean, self.stdev = torch.ones(()) * 3, torch.ones(()) * 5
        y = self.denormalize(x)
        return self.normalize(y)

    def denormalize(self, x: Tensor) -> Tensor:
        return x * self.stdev + self.mean

    def normalize(self, x: Tensor) -> Tensor:
        return (x - x.mean()) / x.std()


HEALTHY: dict[str, Any] = {
    **HEADS,
    "revin": lambda: ByMode(RevIN()),
    "last": lambda: ByMode(SubtractsTheLast()),
    "large-epsilon": lambda: ByMode(WithoutVariance()),
    "predicted": Predicted,
    "both-in-one": HandsBoth,
    "input-and-output": InputAndOutput,
    "clamped": Clamped,
    "lengths": LosesLengths,
    "of-two": OfTwoTensors,
    "plain-object": lambda: ByObject(Normalizer),
    "windows": Windows,
    "patches": Patches,
    "packed": Masked,
    "masked-statistics": MaskedStatistics,
    "overlapping": Overlapping,
    "shifted": Shifted,
    "scan": Both,
    "padded": Padded,
    "channels-behind": OtherWindows,
    "sorted": Sorted,
    "logarithms": Logarithms,
    "drawn": Drawn,
    "rolled-outside": RolledOutside,
    "rotated": Rotated,
    "of-a-kind": OfAKind,
    "unrelated": Unrelated,
    "denormed-first": DenormedFirst,
}
