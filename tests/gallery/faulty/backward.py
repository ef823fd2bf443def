"""Outputs that are finite and gradients that are not."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .host import hosting


def _masked_root_of_zero(x: Tensor) -> Tensor:
    positive = x * (x > 0)
    root = positive.sqrt()  # here
    return torch.where(positive > 0, root, positive)


def _masked_root_of_negative(x: Tensor) -> Tensor:
    root = x.sqrt()  # here
    return torch.where(x > 0, root, x)


def _norm_at_zero(x: Tensor) -> Tensor:
    nothing = x * (x > 100)
    return x + (nothing * nothing).sum(-1, keepdim=True).sqrt()  # here


def _power_below_one(x: Tensor) -> Tensor:
    return x + (x * (x > 100)).pow(0.5)  # here


def _recomputed(x: Tensor) -> Tensor:
    return checkpoint(_masked_root_of_zero, x, use_reentrant=False)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient / (gradient - gradient)  # here


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        raise RuntimeError("no backward today")  # here


def _saved_and_overwritten(x: Tensor) -> Tensor:
    weights = x.sigmoid()  # here
    weights.mul_(2)
    return weights


masked_root = hosting(_masked_root_of_zero)
masked_negative_root = hosting(_masked_root_of_negative)
norm_at_zero = hosting(_norm_at_zero)
power = hosting(_power_below_one)
recomputed = hosting(_recomputed)
custom = hosting(_Doubled.apply)
raises = hosting(_InPlace.apply)
overwritten = hosting(_saved_and_overwritten)
