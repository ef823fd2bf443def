"""Modules whose way of being called, or of answering, takes some finding out; all healthy but for what is marked."""

import torch
from torch import Tensor, nn

from .host import DIM


class _Unusual(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM, **options)


class _LossFirst(_Unusual):
    def forward(self, x: Tensor):
        h = self.linear(x)
        return h.mean(), h


class _Nested(_Unusual):
    def forward(self, x: Tensor):
        return {"out": [self.linear(x)]}


class _ByName(_Unusual):
    def forward(self, *, inputs_embeds: Tensor, attention_mask: Tensor | None = None):
        return self.linear(inputs_embeds)


class _InBfloat16(_Unusual):
    def __init__(self) -> None:
        super().__init__(dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.bfloat16()).to(x.dtype)


class _HiddenVocabulary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(13, DIM))

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids] @ self.table.T


class _Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class _TwoInputs(_Unusual):
    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        return self.linear(query) + memory


class _FaultyBeside(_Unusual):
    def forward(self, x: Tensor):
        h = self.linear(x)
        return {"logits": h, "inner": ({"loss": (h.mean() - h.mean()).log() * 0},)}  # here


loss_first = _LossFirst
nested = _Nested
by_name = _ByName
in_bfloat16 = _InBfloat16
hidden_vocabulary = _HiddenVocabulary
lazy = _Lazy
two_inputs = _TwoInputs
faulty_beside = _FaultyBeside
