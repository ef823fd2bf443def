"""Loops that operations per token do not show: to a limit, and in plain Python; the line to blame is marked."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from .host import DIM, Host, hosting

LONGEST = 1024


def _to_the_limit(x: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(x, (0, 0, 0, LONGEST - x.shape[1]))
    rows = [padded[:, token].tanh() for token in range(LONGEST)]  # here
    return torch.stack(rows, 1)[:, : x.shape[1]]


def _mask_of_lists(x: Tensor) -> Tensor:
    length = x.shape[1]
    rows = [[0.0 if key <= query else float("-inf") for key in range(length)] for query in range(length)]  # here
    return softmax(x @ x.mT + torch.tensor(rows), -1) @ x


def _counted_in_python(x: Tensor) -> Tensor:
    count = 0
    for first in range(x.shape[1]):
        for second in range(first):
            for third in range(second):  # here
                count += first ^ second ^ third
    return x + 0 * float(count % 2)


class _MaskKept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.masks = {}

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if length not in self.masks:
            rows = [[0.0 if key <= query else float("-inf") for key in range(length)] for query in range(length)]
            self.masks[length] = torch.tensor(rows)
        return softmax(x @ x.mT + self.masks[length], -1) @ x


def _positions_of_a_list(x: Tensor) -> Tensor:
    at = torch.tensor([float(token) for token in range(x.shape[1])])
    return x + 0.01 * at[:, None]


def _pairs_of_tiles(x: Tensor) -> Tensor:
    tiles = range(0, x.shape[1], 16)
    kept = [(query, key) for query in tiles for key in tiles if key <= query]
    return x + 0 * float(len(kept))


def _sinkhorn(x: Tensor) -> Tensor:
    scores = (x @ x.mT).tril()
    for _ in range(100):
        scores = scores / scores.abs().sum(-1, keepdim=True).clamp(min=1)
    return scores @ x


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(128, DIM) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + sum((x * expert).tanh() for expert in self.experts) / 128


class _PaddedRecurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((DIM,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, 0, 0, LONGEST - x.shape[1]))
        state, states = torch.zeros_like(x[:, 0]), []
        for token in padded.unbind(1):
            state = self.rate * state + token
            states.append(state)
        return torch.stack(states, 1)[:, : x.shape[1]]


def _blocks_counted_in_python(x: Tensor) -> Tensor:
    ends = range(15, x.shape[1], 16)
    seen = [sum(end <= token for end in ends) for token in range(x.shape[1])]  # here
    return x + 0 * torch.tensor(seen)[:, None]


def _mask_of_filled_blocks(x: Tensor) -> Tensor:
    filled = -(-x.shape[1] // 32) * 32
    rows = [[key <= query for key in range(filled)] for query in range(filled)]  # here
    return x + 0 * torch.tensor(rows)[: x.shape[1], :1]


to_the_limit = hosting(_to_the_limit)
blocks_counted_in_python = hosting(_blocks_counted_in_python)
mask_of_filled_blocks = hosting(_mask_of_filled_blocks)
mask_of_lists = hosting(_mask_of_lists)
counted_in_python = hosting(_counted_in_python)

mask_kept = lambda: Host(_MaskKept())  # noqa: E731
positions_of_a_list = hosting(_positions_of_a_list)
pairs_of_tiles = hosting(_pairs_of_tiles)
sinkhorn = hosting(_sinkhorn)
experts = lambda: Host(_Experts())  # noqa: E731
padded_recurrence = lambda: Host(_PaddedRecurrence())  # noqa: E731
