"""Which slots of what an output projection is given depend on which head of the projections before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import Softmax, softmaxes
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule

_LENGTH, _MOST_LAYERS = 13, 2
_FEWEST = 2  # what goes in, fused perhaps, and what comes out
_ROUNDINGS = 1e6  # a weight that is moved moves what depends on it by more than any rounding does


@dataclass(frozen=True)
class Pairing:
    """Of one projection, by its heads in order: the slots of `num_heads` that each has an effect on, in `output`.

    `place` is where the layer's attention is computed.
    """

    path: str
    num_heads: int
    slots: tuple[frozenset[int], ...]
    output: str
    place: Place


def pairings(sp: BuiltModule) -> Iterator[list[Pairing]]:
    """For the first layers that have projections, attention over tokens and an output projection: all of one layer."""
    x = sp.input(min(_LENGTH, sp.subject.max_length))
    seen: set[str] = set()
    for each in softmaxes(sp, x)[0]:
        path = each.place.module
        if not each.is_of_tokens(x.shape[1]) or path in seen or len(seen) == _MOST_LAYERS:
            continue
        seen.add(path)
        layer = _Layer(sp, x, path, each)
        if layer.output:
            yield [layer.pairing(name) for name in layer.projections]


class _Layer:
    """One layer: its projections, and the first linear layer that is given as many channels per head as they make."""

    def __init__(self, sp: BuiltModule, x: Tensor, path: str, softmax: Softmax) -> None:
        self._sp, self._x = sp, x
        self._place = softmax.place
        self.num_heads = softmax.scores.flatten(0, -3).shape[0] // x.shape[0]
        root = part_at(sp.module, path)
        self._names: dict[nn.Module, str] = {
            child: f"{path}.{name}" if path else name
            for name, child in root.named_modules()
            if isinstance(child, nn.Linear)
        }
        with self._given() as given:
            self._run()
        called = [self._names[child] for child in given]
        self.output = ""
        if len(called) < _FEWEST or self.num_heads == 1:
            return
        width = int(weight_of(sp, called[-1]).shape[1])
        if width % self.num_heads:
            return
        self.output, self._size = called[-1], width // self.num_heads
        self._before = given[part_at(sp.module, self.output)]
        self.projections = [name for name in called[:-1] if self._num_blocks(name) > 1]

    def pairing(self, name: str) -> Pairing:
        """Move each head of that projection by itself and see which slots follow."""
        weight = weight_of(self._sp, name)
        blocks = range(self._num_blocks(name))
        slots = tuple(self._followers(weight, block) for block in blocks)
        return Pairing(name, self.num_heads, slots, self.output, self._place)

    def _num_blocks(self, name: str) -> int:
        rows = int(weight_of(self._sp, name).shape[0])
        return 0 if rows % self._size else rows // self._size

    def _followers(self, weight: Tensor, block: int) -> frozenset[int]:
        rows = slice(block * self._size, (block + 1) * self._size)
        kept = weight[rows].detach().clone()
        generator = torch.Generator().manual_seed(self._sp.subject.seed + block)
        noise = torch.randn(kept.shape, generator=generator, device="cpu").to(kept)
        try:
            with torch.no_grad():
                weight[rows] += noise * kept.abs().mean()
            with self._given() as given:
                self._run()
        finally:
            with torch.no_grad():
                weight[rows] = kept
        after = given[part_at(self._sp.module, self.output)]
        if after.shape != self._before.shape:
            return frozenset()
        bound = _ROUNDINGS * torch.finfo(after.dtype).eps * float(self._before.abs().max())
        moved = ((after - self._before).abs() > bound).unflatten(-1, (self.num_heads, -1))
        return frozenset(moved.movedim(-2, 0).flatten(1).any(1).nonzero().flatten().tolist())

    def _run(self) -> None:
        with torch.no_grad():
            self._sp(self._x)

    @contextmanager
    def _given(self) -> Iterator[dict[nn.Module, Tensor]]:
        """What each linear layer of this layer is given first, in the order of their calls."""
        given: dict[nn.Module, Tensor] = {}

        def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if module in self._names and inputs:
                given.setdefault(module, inputs[0].detach().clone())

        hook = register_module_forward_pre_hook(note)
        try:
            yield given
        finally:
            hook.remove()


def weight_of(sp: BuiltModule, name: str) -> Tensor:
    """The weight of the linear layer of that path."""
    weight = part_at(sp.module, name).weight
    assert isinstance(weight, Tensor)
    return weight
