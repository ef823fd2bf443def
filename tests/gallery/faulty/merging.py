"""Positions and masks that half precision merges: by design inside, or once a module of float32 is converted."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from .host import DIM, Host, hosting


def _attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return softmax((q @ k.mT / DIM**0.5).masked_fill(hidden, float("-inf")), -1) @ v


def _later(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # here
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class _Rotary(nn.Module):
    """Rotates queries and keys; `angles` says in which precision."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, DIM, 2) / DIM))

    def forward(self, x: Tensor) -> Tensor:
        angles = self.angles(x)
        return _attention(_turned(self.q(x), angles), _turned(self.k(x), angles), self.v(x), _later(x))

    def angles(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], device=x.device).float()[:, None] * self.inv_freq.float()


class _PositionsOfTheBuffer(_Rotary):
    def angles(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], dtype=self.inv_freq.dtype)[:, None] * self.inv_freq  # here


class _PositionsCast(_Rotary):
    def angles(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]).type_as(x)[:, None] * self.inv_freq  # here


class _AnglesByProduct(_Rotary):
    """Autocast computes matrix products in half precision."""

    def angles(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], dtype=torch.float32)
        return positions[:, None] @ self.inv_freq.float()[None]  # here


class _HalfPositions(_Rotary):
    def angles(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], dtype=torch.bfloat16)[:, None] * self.inv_freq  # here


class _PaddedPositions(_Rotary):
    def angles(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1] - 1, dtype=torch.bfloat16)  # here
        return torch.nn.functional.pad(positions, (1, 0))[:, None] * self.inv_freq


class _Float16Positions(_Rotary):
    def angles(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], dtype=torch.float16)[:, None].to(x.dtype) * self.inv_freq  # here


class _ChoosesTheNewest(nn.Module):
    """The newest tokens by a key of position and score, which half precision packs into one number."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        keys = torch.arange(x.shape[1], dtype=torch.bfloat16)  # here
        order = keys.sort(descending=True, stable=True).indices.flip(0)
        return x[:, order].cumsum(1) / torch.arange(1, x.shape[1] + 1).to(x)[:, None] * self.score(x)


class _HalfAngles(_Rotary):
    def angles(self, x: Tensor) -> Tensor:
        return super().angles(x).bfloat16()


class _Masked(nn.Module):
    """A window of 32 tokens, found by comparing positions of a tensor made like this."""

    def __init__(self, positions) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.positions = positions

    def forward(self, x: Tensor) -> Tensor:
        at = self.positions(x)
        hidden = (at[:, None] < at[None]) | (at[:, None] >= at[None] + 32)
        return _attention(self.q(x), self.k(x), self.v(x), hidden)


def _in_its_dtype(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1]).to(x.dtype)  # here


def _in_half(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], dtype=torch.bfloat16)  # here


def _alibi(x: Tensor) -> Tensor:
    """Distances as half precision holds them: those far away hardly count."""
    at = torch.arange(x.shape[1])
    scores = x @ x.mT / DIM**0.5 - 0.25 * (at[:, None] - at[None]).to(x.dtype).abs()
    return softmax(scores.masked_fill(_later(x), float("-inf")), -1) @ x


def _alibi_of_positions(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[1]).to(x.dtype)  # here
    scores = x @ x.mT / DIM**0.5 - 0.25 * (at[:, None] - at[None]).abs()
    return softmax(scores.masked_fill(_later(x), float("-inf")), -1) @ x


class _Indices(nn.Module):
    """Positions in the input's precision that look a table up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1024, DIM)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1]).to(x.dtype)  # here
        return x + self.table((at * 1).long())


def _mean_so_far(x: Tensor) -> Tensor:
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1).to(x)[:, None]


class _SlowDecay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((DIM,), 0.99))

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = self.rate * state + token
            states.append(state)
        return torch.stack(states, 1)


class _LogDecay(nn.Module):
    """Decays as differences of a running sum of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        so_far = nn.functional.logsigmoid(self.gate(x) + 3).cumsum(1)
        weights = (so_far - so_far.mT).masked_fill(_later(x), float("-inf")).exp()
        return weights @ x / x.shape[1] ** 0.5


class _BestTokens(nn.Module):
    """Attends to the eight earlier tokens of the highest scores, as they are ordered by `order`."""

    def __init__(self, order: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.order = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), order

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.q(x) @ self.k(x).mT).masked_fill(_later(x), float("-inf"))
        hidden = torch.ones_like(scores, dtype=torch.bool).scatter(-1, self.order(scores)[..., :8], False)
        return _attention(x, x, x, hidden | _later(x))


def _sorted_in_half(scores: Tensor) -> Tensor:
    return scores.bfloat16().sort(descending=True, stable=True).indices  # here


def _top_in_half(scores: Tensor) -> Tensor:
    return scores.bfloat16().topk(min(8, scores.shape[-1])).indices  # here


def _by_what_was_computed_in_half(scores: Tensor) -> Tensor:
    """A choice by products of low precision, as an indexer makes it on purpose."""
    return (scores.detach().nan_to_num(0).bfloat16() * 2).topk(min(8, scores.shape[-1])).indices


positions_of_the_buffer = lambda: Host(_PositionsOfTheBuffer())  # noqa: E731
positions_cast = lambda: Host(_PositionsCast())  # noqa: E731
angles_by_product = lambda: Host(_AnglesByProduct())  # noqa: E731
half_positions = lambda: Host(_HalfPositions())  # noqa: E731
padded_positions = lambda: Host(_PaddedPositions())  # noqa: E731
float16_positions = lambda: Host(_Float16Positions())  # noqa: E731
packed_keys = lambda: Host(_ChoosesTheNewest())  # noqa: E731
half_angles = lambda: Host(_HalfAngles())  # noqa: E731
mask_in_its_dtype = lambda: Host(_Masked(_in_its_dtype))  # noqa: E731
mask_in_half = lambda: Host(_Masked(_in_half))  # noqa: E731
alibi_of_positions = hosting(_alibi_of_positions)
indices = lambda: Host(_Indices())  # noqa: E731
sorted_in_half = lambda: Host(_BestTokens(_sorted_in_half))  # noqa: E731
top_in_half = lambda: Host(_BestTokens(_top_in_half))  # noqa: E731

rotary = lambda: Host(_Rotary())  # noqa: E731
mask = lambda: Host(_Masked(lambda x: torch.arange(x.shape[1])))  # noqa: E731
alibi = hosting(_alibi)
mean_so_far = hosting(_mean_so_far)
slow_decay = lambda: Host(_SlowDecay())  # noqa: E731
log_decay = lambda: Host(_LogDecay())  # noqa: E731
computed_in_half = lambda: Host(_BestTokens(_by_what_was_computed_in_half))  # noqa: E731
top_in_float32 = lambda: Host(_BestTokens(lambda x: x.topk(min(8, x.shape[-1])).indices))  # noqa: E731
