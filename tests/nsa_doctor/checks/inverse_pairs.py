"""Functions of which one does not undo the other as it should, each marked at its line, and what they are made from."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

DIM = 32
HEADS = 4


class Heads(nn.Module):
    """Attention by heads that are split and merged."""

    def split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split_heads(each) for each in (x, 2 * x, 3 * x))
        return self.merge_heads(functional.scaled_dot_product_attention(q, k, v))


class MergedWithoutTranspose(Heads):
    def merge_heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[2], -1)  # here


class SplitWithoutTranspose(Heads):
    def split_heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], HEADS, x.shape[1], -1)  # here


class CombinedInAnotherOrder(nn.Module):
    """Heads within channels on the way in, channels within heads on the way out."""

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).permute(0, 2, 1, 3)

    def _combine_heads(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(2)  # here

    def forward(self, x: Tensor) -> Tensor:
        return self._combine_heads(self._split_heads(x).cumsum(2))


def split_channels(x: Tensor, groups: int) -> Tensor:
    return x.reshape(x.shape[0], groups, x.shape[1], -1)  # here


def join_channels(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Channels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return join_channels(split_channels(x, 4).sin())


class RevIN(nn.Module):
    """Instance normalisation that is undone at the end, by a mode."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.eps = 1e-5

    def forward(self, x: Tensor, mode: str) -> Tensor:
        if mode == "norm":
            self._statistics(x)
            return self._normalize(x)
        return self._denormalize(x)

    def _statistics(self, x: Tensor) -> None:
        self.mean = x.mean(1, keepdim=True).detach()
        self.stdev = (x.var(1, keepdim=True, unbiased=False) + self.eps).sqrt().detach()

    def _normalize(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.stdev * self.weight + self.bias

    def _denormalize(self, x: Tensor) -> Tensor:
        x = (x - self.bias) / (self.weight + self.eps * self.eps)
        return x * self.stdev + self.mean


class DividesFirst(RevIN):
    def _denormalize(self, x: Tensor) -> Tensor:
        x = x / self.weight - self.bias
        return x * self.stdev + self.mean  # here


class AddsTheMeanFirst(RevIN):
    def _denormalize(self, x: Tensor) -> Tensor:
        x = (x - self.bias) / self.weight
        return (x + self.mean) * self.stdev  # here


class ForgetsTheWeights(RevIN):
    def _denormalize(self, x: Tensor) -> Tensor:
        return x * self.stdev + self.mean  # here


class ByMode(nn.Module):
    """A norm of two modes around a layer."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = norm, nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner(self.norm(x, "norm")), "denorm")


def standardize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
    return (x - mean) / std, mean, std


def unstandardize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (x + mean) * std  # here


def destandardize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return x * std + mean


class ByFunctions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y, mean, std = standardize(x)
        return unstandardize(y.tanh(), mean, std)


class SwappedStatistics(nn.Module):
    """The statistics change places in the call alone."""

    def forward(self, x: Tensor) -> Tensor:
        y, mean, std = standardize(x)
        return destandardize(y.tanh(), std, mean)


class Normalizer:
    """Statistics in a plain object."""

    def __init__(self) -> None:
        self.mean, self.std = torch.tensor(0.5), torch.tensor(2.0)

    def encode(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def decode(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean


class OrderedWronglyNormalizer(Normalizer):
    def decode(self, x: Tensor) -> Tensor:
        return (x + self.mean) * self.std  # here


class ByObject(nn.Module):
    def __init__(self, kind: type[Normalizer]) -> None:
        super().__init__()
        self.normalizer = kind()

    def forward(self, x: Tensor) -> Tensor:
        return self.normalizer.decode(self.normalizer.encode(x).tanh())


def window_partition(x: Tensor, size: int) -> Tensor:
    rows, height, width, dim = x.shape
    x = x.view(rows, height // size, size, width // size, size, dim)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size, size, dim)


def window_reverse(windows: Tensor, size: int, height: int, width: int) -> Tensor:
    x = windows.view(-1, height // size, width // size, size, size, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, height, width, windows.shape[-1])


def window_unpartition(windows: Tensor, size: int, height: int, width: int) -> Tensor:
    x = windows.view(-1, width // size, height // size, size, size, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, height, width, windows.shape[-1])  # here


class Windows(nn.Module):
    """Tokens as an image of 4 rows, in windows of 2 by 2."""

    def __init__(self, undo: Any = window_reverse) -> None:
        super().__init__()
        self.undo = undo

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (0, 0, 0, -x.shape[1] % 8))
        image = padded.unflatten(1, (4, -1))
        windows = window_partition(image, 2)
        return self.undo(windows.sin(), 2, *image.shape[1:3]).flatten(1, 2)[:, : x.shape[1]]


class Patches(nn.Module):
    def patchify(self, images: Tensor) -> Tensor:
        x = images.unflatten(-1, (-1, 2)).unflatten(2, (-1, 2))
        return torch.einsum("nchpwq->nhwpqc", x).reshape(len(x), -1, 4 * x.shape[1])

    def unpatchify(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 4, -1, 2, 2, DIM)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(len(x), DIM, 8, -1)

    def forward(self, x: Tensor) -> Tensor:
        images = functional.pad(x, (0, 0, 0, -x.shape[1] % 16)).mT.unflatten(2, (8, -1))
        return self.unpatchify(self.patchify(images).tanh()).flatten(2).mT[:, : x.shape[1]]


class PatchesTurned(Patches):
    def unpatchify(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 4, -1, 2, 2, DIM)
        return torch.einsum("nhwqpc->nchpwq", x).reshape(len(x), DIM, 8, -1)  # here


class Rolled(nn.Module):
    def shift(self, x: Tensor, size: int) -> Tensor:
        return x.roll(-size, 1)

    def unshift(self, x: Tensor, size: int) -> Tensor:
        return x.roll(-size, 1)  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.unshift(self.shift(x, 3).tanh(), 3)


class HandsBothWrongly(nn.Module):
    """Statistics are handed on in one, and the mean is added first."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def normalize(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-6
        return (x - mean) / std, (mean, std)

    def denormalize(self, x: Tensor, stats: tuple[Tensor, Tensor]) -> Tensor:
        mean, std = stats
        return (x + mean) * std  # here

    def forward(self, x: Tensor) -> Tensor:
        y, stats = self.normalize(x)
        return self.denormalize(self.mix(y), stats)


FAULTY: dict[str, tuple[Any, str]] = {
    "both-in-one": (HandsBothWrongly, "denormalize does not give back what normalize was given"),
    "merge-without-transpose": (MergedWithoutTranspose, "merge_heads does not give back what split_heads"),
    "split-without-transpose": (SplitWithoutTranspose, "split_heads takes places of one axis for those of another"),
    "combined-in-another-order": (CombinedInAnotherOrder, "_combine_heads does not give back"),
    "channels": (Channels, "split_channels takes places of one axis"),
    "weight-before-bias": (lambda: ByMode(DividesFirst()), "(mode='denorm') does not give back"),
    "mean-before-std": (lambda: ByMode(AddsTheMeanFirst()), "(mode='denorm') does not give back"),
    "weights-forgotten": (lambda: ByMode(ForgetsTheWeights()), "(mode='denorm') does not give back"),
    "function": (ByFunctions, "unstandardize does not give back what standardize"),
    "plain-object": (lambda: ByObject(OrderedWronglyNormalizer), "decode does not give back what encode"),
    "windows": (lambda: Windows(window_unpartition), "window_unpartition does not give back"),
    "patches": (PatchesTurned, "unpatchify does not give back"),
    "rolled": (Rolled, "unshift does not give back what shift"),
}
