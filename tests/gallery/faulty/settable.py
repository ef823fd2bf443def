"""Attention that can be set in several ways: by variables of the environment, and by fields of its configuration."""

import os
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from .host import DIM, Host

IS_FUSED_ON_IMPORT = os.getenv("SETTABLE_USE_FUSED", "0") == "1"


@dataclass(frozen=True, kw_only=True)
class Config:
    """`scale` is what the eager path takes for its own, where that is another."""

    impl: Literal["sdpa", "eager"] = "sdpa"
    normalised: bool = False
    forgotten: bool = True
    use_flash: bool = False


class _Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.eager_scale = DIM**-0.5

    def forward(self, x: Tensor) -> Tensor:
        query = normalize(x, dim=-1) if self.config.normalised else x
        if self.config.impl == "sdpa":
            return scaled_dot_product_attention(query, x, x, is_causal=True)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return (query @ x.mT * self.eager_scale).masked_fill(hidden, float("-inf")).softmax(-1) @ x


class _Triton(_Attention):
    def forward(self, x: Tensor) -> Tensor:
        scale = 1.1 if os.environ.get("SETTABLE_USE_TRITON") == "1" else 1.0  # here
        return super().forward(x) * scale


class _OnImport(_Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.1 if IS_FUSED_ON_IMPORT else 1.0)


class _Half(_Attention):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.is_wide = os.environ.get("SETTABLE_WIDE", "0") == "1"  # here

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.1 if os.environ.get("SETTABLE_WIDE", "0") == "1" else 1.0
        return super().forward(x) * scale * (1.3 if self.is_wide else 1.0)


class _OtherScale(_Attention):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.eager_scale = 0.3


class _SoftmaxInFloat32(_Attention):
    def forward(self, x: Tensor) -> Tensor:
        if self.config.impl == "sdpa":
            return super().forward(x)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (x @ x.mT * self.eager_scale).masked_fill(hidden, float("-inf"))
        return scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ x


def softmax_in_float32() -> nn.Module:
    return Host(_SoftmaxInFloat32(Config()))


def healthy() -> nn.Module:
    return Host(_Attention(Config()))


def triton() -> nn.Module:
    return Host(_Triton(Config()))


def on_import() -> nn.Module:
    return Host(_OnImport(Config()))


def half() -> nn.Module:
    return Host(_Half(Config()))


def other_scale() -> nn.Module:
    return Host(_OtherScale(Config()))
