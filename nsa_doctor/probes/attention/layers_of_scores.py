"""The layers of a model that weigh all tokens for each of them, with what they were given: to be called by themselves.

A layer is the innermost module in whose call a softmax over [..., S, S] runs and that holds a projection.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.equal_tokens import PRODUCTS, SHAPING, token_axis
from nsa_doctor.probes.attention.score_watch import MASKED, SOFTMAX, is_over_the_last
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name

_FEWEST = 4  # keys that a row sees, before anything is said of it
_NEARLY_ALL = 0.9
_SAME = 1e-6  # of the largest score


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: the call that was seen, its scores [..., S, S], and where it lays out what they are made of.

    num_products: how many products with S keys were made before, at most at once, in units of [S, S]; num_channels:
    of how many channels each.
    """

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    scores: Tensor
    layout: Place
    length: int
    num_products: int
    num_channels: int
    num_softmaxes: int = 1

    @property
    def num_maps(self) -> int:
        """Maps of scores of the one row, heads that the softmax joins included."""
        return max(self.scores.numel() // self.length**2, self.num_products)

    @property
    def width(self) -> int:
        """Channels of what it is given for each token; 0 where nothing counts tokens."""
        return next((each.shape[-1] for each in (*self.args, *self.kwargs.values()) if self._counts_tokens(each)), 0)

    def rows_of(self, token: int) -> Tensor | None:
        """How many rows of scores change altogether with one token, by map; None where a call by itself fails."""
        changed = attempt(lambda: self._scores_with(token))
        if isinstance(changed, Caught) or changed is None or changed.shape != self.scores.shape:
            return None
        is_seen = (self.scores > MASKED) & (changed > MASKED)
        bound = _SAME * float(self.scores.masked_fill(~is_seen, 0.0).abs().max())
        is_other = is_seen & ((changed - self.scores).abs() > bound)
        num_seen = is_seen.sum(-1)
        is_whole = (num_seen >= _FEWEST) & (is_other.sum(-1) > _NEARLY_ALL * num_seen)
        return is_whole.flatten(0, -2).sum(-1)

    def _scores_with(self, token: int) -> Tensor | None:
        """The scores where one token of whatever counts tokens is another."""
        chance = torch.Generator().manual_seed(token)

        def other(value: Any) -> Any:
            if not self._counts_tokens(value):
                return value
            changed = value.detach().clone()
            row = changed.select(token_axis(changed, self.length), token)
            row += row.abs().max() * torch.randn(row.shape[-1], generator=chance).to(row)
            return changed

        watch = _Watch(None, self.length)
        with torch.no_grad(), watch.watching():
            self.module(*map(other, self.args), **{name: other(value) for name, value in self.kwargs.items()})
        return watch.scores[0] if watch.scores else None

    def _counts_tokens(self, value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.ndim > 2
            and token_axis(value, self.length) >= 0
        )


def layers_of_scores(sp: BuiltModule, length: int) -> list[Layer]:
    """Those of one pass over one row of so many tokens, each once."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Watch(places, length)
    with torch.no_grad(), watch.hooked(sp.module), watch.watching():
        sp(sp.input(length))
    return list(watch.layers.values())


@dataclass
class _Call:
    """A call of a module that is under way; where values were laid out in it."""

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shaped: list[Place] = field(default_factory=list)
    num_products: int = 0
    num_channels: int = 0


class _Watch(DispatchWatcher):
    """Notes scores, and with places those layers too in whose call they are."""

    def __init__(self, places: Places | None, length: int) -> None:
        super().__init__()
        self.scores: list[Tensor] = []
        self.layers: dict[str, Layer] = {}
        self._places, self._length = places, length
        self._calls: list[_Call] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends; attention that torch fuses is taken apart."""
        with sdpa_kernel(SDPBackend.MATH), nullcontext() if self._places is None else self._places.watching(), self:
            yield

    @contextmanager
    def hooked(self, module: nn.Module) -> Iterator[None]:
        """Know which part with a projection is called, until the region ends."""
        hooks = []
        for path, part in module.named_modules():
            if any(isinstance(each, nn.Linear) for each in part.modules()):
                hooks.append(part.register_forward_pre_hook(self._begin(path), with_kwargs=True))
                hooks.append(part.register_forward_hook(self._end, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, path: str) -> Any:
        def begin(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            with untraced():
                kept = {name: _copied(value) for name, value in kwargs.items()}
                self._calls.append(_Call(path, part, tuple(map(_copied, args)), kept))

        return begin

    def _end(self, *_: Any) -> None:
        self._calls.pop()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        result, name = func(*args, **kwargs), operation_name(func)
        if name in SHAPING and self._calls and self._places is not None:
            self._calls[-1].shaped.append(self._places.here()[0])
        if name in PRODUCTS and self._calls and result.shape[-1] == self._length:
            call, number = self._calls[-1], result.numel() // self._length**2
            if number > call.num_products:
                call.num_products, call.num_channels = number, args[-1].shape[-2]
        if name in SOFTMAX and is_over_the_last(result, args) and result.shape[-2:] == (self._length, self._length):
            self.scores.append(args[0].detach().clone())
            if self._calls and self._places is not None:
                self._know(self._calls[-1], self._places.here()[0])
        return result

    def _know(self, call: _Call, place: Place) -> None:
        known = self.layers.get(call.path)
        if known is not None:
            self.layers[call.path] = replace(known, num_softmaxes=known.num_softmaxes + 1)
            return
        self.layers[call.path] = Layer(
            path=call.path,
            module=call.module,
            args=call.args,
            kwargs=call.kwargs,
            scores=self.scores[-1],
            layout=_laid_out(call.shaped, place),
            length=self._length,
            num_products=call.num_products,
            num_channels=call.num_channels,
        )


def _laid_out(shaped: list[Place], place: Place) -> Place:
    """Where values were laid out first, in the file that takes the softmax."""
    return next((each for each in shaped if each.file == place.file), place)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
