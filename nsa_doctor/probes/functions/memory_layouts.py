"""The same values in other memory layouts: wider rows, other orders, offsets, shared memory, guards around."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsa_doctor.probes.functions.calling import Arrange

_GUARD = 1024  # elements on each side
INPUTS = ("q", "k", "v", "dout")


def _wider(tensor: Tensor) -> Tensor:
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 8), _FILL, dtype=tensor.dtype, device=tensor.device)
    return wide[..., : tensor.shape[-1]].copy_(tensor)


def _every_other(tensor: Tensor) -> Tensor:
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), _FILL, dtype=tensor.dtype, device=tensor.device)
    return wide[..., ::2].copy_(tensor)


def _swapped(tensor: Tensor) -> Tensor:
    return tensor.transpose(-2, -3).contiguous().transpose(-2, -3) if tensor.ndim > 2 else tensor


def _channels_outside(tensor: Tensor) -> Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.ndim > 2 else tensor


def _offset(tensor: Tensor) -> Tensor:
    flat = torch.full((tensor.numel() + 1,), _FILL, dtype=tensor.dtype, device=tensor.device)
    return flat[1:].copy_(tensor.flatten()).view(tensor.shape)


_FILL = 1e4
LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "rows of a wider tensor": _wider,
    "heads and positions swapped in memory": _swapped,
    "every other channel of a wider tensor": _every_other,
    "channels outermost in memory": _channels_outside,
    "an offset of one element": _offset,  # last: a kernel may leave the process without its device
}


def arranged(layout: str, names: tuple[str, ...] = INPUTS) -> Arrange:
    """Lay out the tensors of those names so."""
    return lambda name, tensor: LAYOUTS[layout](tensor) if name in names else tensor


def expanded(name: str, tensor: Tensor) -> Tensor:
    """The first row of a batch of equal rows for all of them, in the memory of one, in place of copies."""
    return tensor[:1].expand(tensor.shape) if name in INPUTS and tensor.ndim == 4 else tensor


def collapsed(name: str, tensor: Tensor) -> Tensor:
    """Keys and values, where all rows or all heads hold the same, in the memory of one, in place of copies."""
    if name not in ("k", "v"):
        return tensor
    for axis in range(tensor.ndim - 1):
        first = tensor.narrow(axis, 0, min(1, tensor.shape[axis]))
        if tensor.shape[axis] > 1 and bool((tensor == first).all()):
            tensor = first.expand(tensor.shape)
    return tensor


@dataclass(eq=False)
class Guards:
    """Tensors that lie in larger memory, and what lies around them."""

    fill: float
    around: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    def arrange(self, name: str, tensor: Tensor) -> Tensor:
        """A contiguous copy in the middle of guarded memory."""
        count = math.prod(tensor.shape)
        memory = torch.full((count + 2 * _GUARD,), self.fill, dtype=tensor.dtype, device=tensor.device)
        inner = memory[_GUARD : _GUARD + count]
        inner.copy_(tensor.flatten())
        self.around[name] = (memory, count)
        return inner.view(tensor.shape)

    def written(self) -> dict[str, int]:
        """By name, how many guarded elements were written."""
        found = {}
        for name, (memory, count) in self.around.items():
            outside = torch.cat([memory[:_GUARD], memory[_GUARD + count :]])
            wrong = ~outside.isnan() if math.isnan(self.fill) else outside != outside.new_tensor(self.fill)
            if bool(wrong.any()):
                found[name] = int(wrong.sum())
        return found
