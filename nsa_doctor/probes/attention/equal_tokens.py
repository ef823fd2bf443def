"""What becomes of equal tokens between the projections of an attention layer and its output projection.

Whatever the mask, the window, the rotation of queries and keys and their bias are, a softmax over keys gives the mean
of equal values: every token comes out the same. Where tokens are taken apart as heads, or heads are joined as tokens,
they come out as other arrangements of the same few numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import SOFTMAX
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name

LENGTH = 48  # whole in most numbers of heads
SHAPING = frozenset({"view", "unsafe_view", "reshape", "reshape_alias"})
PRODUCTS = frozenset({"bmm", "baddbmm"})
_FUSED = "scaled_dot_product"
_EDGE = 12  # tokens at either end, which a convolution or a window may treat otherwise
_SAME = 1e-6  # of the largest number


@dataclass(frozen=True)
class Apart:
    """Equal tokens that reach the projection at `path` as arrangements of one another, and where they are laid out."""

    path: str
    place: Place


@dataclass
class _Layer:
    """What one module did since its first projection: whether it took a softmax, and where it laid values out.

    `are_values_apart` where what a softmax weighs is not the same for all tokens.
    """

    begun: Place
    has_softmax: bool = False
    are_values_apart: bool = False
    before: list[Place] = field(default_factory=list)
    after: list[Place] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """Where tokens are taken apart as heads, if that goes wrong, or else where heads are joined."""
        before = [each for each in self.before if each.line != self.begun.line]
        return before[0] if self.are_values_apart and before else (self.after or [self.begun])[-1]


def taken_apart(sp: BuiltModule) -> Iterator[Apart]:
    """Every layer in which equal tokens come out as arrangements of one another."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    x = sp.input(min(LENGTH, sp.subject.max_length))
    watch = _Watch(places, sp.module, x.shape[1])
    with torch.no_grad(), watch.watching():
        sp(x)
    yield from watch.found


class _Watch(DispatchWatcher):
    def __init__(self, places: Places, module: nn.Module, length: int) -> None:
        super().__init__()
        self.found: list[Apart] = []
        self._places, self._length = places, length
        self._linear = {
            part: (path, path.rpartition(".")[0])
            for path, part in module.named_modules()
            if isinstance(part, nn.Linear)
        }
        self._layers: dict[str, _Layer] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the region ends; every projection is given equal tokens."""
        hooks = [part.register_forward_pre_hook(self._equalise) for part in self._linear]
        try:
            with self._places.watching(), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note a softmax, and where values are laid out, for every layer that has begun."""
        name, result = operation_name(func), func(*args, **kwargs)
        is_fused = name.startswith(_FUSED)
        for layer in self._layers.values():
            if name in SHAPING:
                (layer.after if layer.has_softmax else layer.before).append(self._places.here()[0])
            if is_fused or (name in PRODUCTS and layer.has_softmax):
                layer.are_values_apart |= self._are_apart(args[2] if is_fused else args[-1])
            layer.has_softmax |= is_fused or name in SOFTMAX
        return result

    def _are_apart(self, values: Tensor) -> bool:
        """Whether values [..., S, D] of equal tokens differ."""
        return values.shape[-2] == self._length and not _are_alike(values.movedim(-2, 0))

    def _equalise(self, part: nn.Linear, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        x = given[0] if given else None
        rows = _by_token(x, self._length)
        if rows is None or not isinstance(x, Tensor):
            return None
        with untraced():
            path, holder = self._linear[part]
            layer = self._layers.get(holder)
            if layer is not None and layer.has_softmax:
                if _is_rearranged(rows):
                    self.found.append(Apart(path, layer.place))
                del self._layers[holder]
            else:
                self._layers.setdefault(holder, _Layer(self._places.here()[0]))
            return (rows[:1].expand_as(rows).movedim(0, token_axis(x, self._length)).reshape(x.shape), *given[1:])


def token_axis(x: Tensor, length: int) -> int:
    """Which of the axes before the last counts tokens, or -1."""
    axes = [axis for axis, size in enumerate(x.shape[:-1]) if size == length]
    return axes[0] if len(axes) == 1 else -1


def _by_token(x: object, length: int) -> Tensor | None:
    """Values [S, ...] by token; None where no axis counts tokens."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or token_axis(x, length) < 0:
        return None
    return x.movedim(token_axis(x, length), 0)


def _are_alike(rows: Tensor) -> bool:
    """Whether tokens [S, ...] are all the same, but for those at the ends."""
    flat = rows.flatten(1)[_EDGE:-_EDGE]
    return bool(((flat - flat[:1]).abs() <= _SAME * flat.abs().max()).all())


def _is_rearranged(rows: Tensor) -> bool:
    """Whether tokens differ and all that they hold are no more numbers than one has channels, most in several of these.

    Positions make each another one, of numbers of its own; what fills up makes those at the ends others.
    """
    if _are_alike(rows):
        return False
    flat = rows.double().flatten(1)[_EDGE:-_EDGE]
    bound = _SAME * float(flat.abs().max())
    values, order = flat.flatten().sort()
    group = torch.cat((values.new_zeros(1), (values.diff() > bound).double())).cumsum(0).long()
    columns = torch.arange(flat.shape[1], device=flat.device).expand_as(flat).flatten()[order]
    is_some = values.abs() > bound
    num_numbers = len(group[is_some].unique())
    pairs = torch.stack((group[is_some], columns[is_some]), dim=1).unique(dim=0)
    num_shared = int((pairs[:, 0].bincount() > 1).sum())
    return 0 < num_numbers <= flat.shape[1] and 2 * num_shared > num_numbers
