"""Parts that catch exceptions of their own: some hide a fault behind it, and some ask or choose in this way."""

import warnings
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attention

from .host import Host

_TILE = 16
COUNTS = {"fallbacks": 0}


class _UnservedError(Exception):
    pass


def _causal(x: Tensor) -> Tensor:
    return attention(x, x, x, is_causal=True)


def _tiled(x: Tensor) -> Tensor:
    if x.shape[1] % _TILE:
        raise NotImplementedError(f"the length must be a multiple of {_TILE}")
    return _causal(x)


class _Attends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.fast(x)
        except Exception:  # noqa: BLE001 # here
            return self.slow(x)

    def fast(self, x: Tensor) -> Tensor:
        return _tiled(x)

    def slow(self, x: Tensor) -> Tensor:
        return _causal(x)


class _OtherScale(_Attends):
    def slow(self, x: Tensor) -> Tensor:
        return attention(x, x, x, is_causal=True, scale=0.3)


class _TokenByToken(_Attends):
    def slow(self, x: Tensor) -> Tensor:
        rows = [attention(x[:, t : t + 1], x[:, : t + 1], x[:, : t + 1]) for t in range(x.shape[1])]
        return torch.cat(rows, dim=1)


class _Misspelt(_Attends):
    def fast(self, x: Tensor) -> Tensor:
        return attention(x, x, x, causal=True)  # type: ignore[call-overload]


class _Unfitting(_Attends):
    def fast(self, x: Tensor) -> Tensor:
        return _causal(x) + x.mT[:, :, : x.shape[1] - 1].new_zeros(x.shape[1] + 1, 1)


class _OfAllTokens(_Attends):
    """Every call reads later tokens: lengths differ, and not because some of them fall back."""

    def fast(self, x: Tensor) -> Tensor:
        return _tiled(x) + x.mean(1, keepdim=True)

    def slow(self, x: Tensor) -> Tensor:
        return _causal(x) + x.mean(1, keepdim=True)


class _Counts(_Attends):
    def slow(self, x: Tensor) -> Tensor:
        COUNTS["fallbacks"] += 1
        warnings.warn("falling back to plain attention", stacklevel=2)  # noted
        return _causal(x)


class _Asks(nn.Module):
    """Healthy: a cache that is asked, a view that cannot be, words put into other words, a way to leave a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        try:
            mask = self.masks[x.shape[1]]
        except KeyError:
            mask = self.masks[x.shape[1]] = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        with suppress(_UnservedError, AttributeError):
            return x.attended(mask)  # type: ignore[operator]
        try:
            self._choose(x)
        except _UnservedError:
            return attention(x, x, x, attn_mask=mask)
        return x

    def _choose(self, x: Tensor) -> Tensor:
        try:
            return [][x.shape[1]]
        except IndexError as error:
            raise _UnservedError from error


class _MadeOfAny(nn.Module):
    """Takes a class, an object or a name for its activation, and asks by calling it."""

    def __init__(self, activation: object) -> None:
        super().__init__()
        try:
            self.activation = activation()  # type: ignore[operator]
        except TypeError:
            self.activation = getattr(nn, str(activation))()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


def other_scale() -> nn.Module:
    return Host(_OtherScale())


def token_by_token() -> nn.Module:
    return Host(_TokenByToken())


def misspelt() -> nn.Module:
    return Host(_Misspelt())


def unfitting() -> nn.Module:
    return Host(_Unfitting())


def equal() -> nn.Module:
    return Host(_Attends())


def of_all_tokens() -> nn.Module:
    return Host(_OfAllTokens())


def counts() -> nn.Module:
    return Host(_Counts())


def made_of_any() -> nn.Module:
    return Host(_MadeOfAny("SiLU"))


def asks() -> nn.Module:
    return Host(_Asks())
