"""Tensors of a case: the same values whatever the layout, and a watch over what a call may not write."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.fuzz.cases import Layout
from nsa_doctor.probes.internal import version_of

_FILL = 119  # lies between the values of a sliced tensor: who ignores strides reads it


def laid_out(values: Tensor, layout: Layout) -> Tensor:
    """A tensor of these strides and, unless rows are `expanded` from the first, these values."""
    if values.ndim < 2 or not values.numel():
        return values.clone()
    match layout:
        case "contiguous":
            return values.clone()
        case "transposed":
            return values.transpose(0, -1).contiguous().transpose(0, -1)
        case "expanded":
            return values[:1].clone().expand_as(values)
        case "sliced":
            wide = values.new_full((*values.shape[:-1], 2 * values.shape[-1]), _FILL)
            wide[..., ::2] = values
            return wide[..., ::2]
        case "offset":
            longer = values.new_full((values.shape[0] + 1, *values.shape[1:]), _FILL)
            longer[1:] = values
            return longer[1:]


def normal(
    shape: Sequence[int], seed: int, magnitude: float, dtype: torch.dtype, device: str | torch.device = "cpu"
) -> Tensor:
    """Normal values of that magnitude, as far as the dtype reaches; the same everywhere but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device="cpu") * magnitude
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(device, dtype)


@dataclass
class Watch:
    """Remembers the memory behind arguments bit for bit, and how often torch has seen it written."""

    _kept: list[tuple[str, Tensor, Tensor, Tensor, int]] = field(default_factory=list)

    def over(self, **arguments: Tensor) -> "Watch":
        """Watch these tensors too."""
        for name, tensor in arguments.items():
            memory = _memory(tensor)
            self._kept.append((name, tensor, memory, memory.clone(), version_of(tensor)))
        return self

    def changed(self) -> list[str]:
        """Names of arguments whose memory has changed."""
        return [name for name, _, memory, before, _ in self._kept if not torch.equal(memory, before)]

    def written(self) -> list[str]:
        """Names of arguments that were written into, with the values they had or others."""
        bumped = [name for name, tensor, _, _, version in self._kept if version_of(tensor) != version]
        return [*self.changed(), *bumped]


def listed(values: Tensor) -> Any:
    """A tensor's values as nested lists."""
    return values.detach().cpu().tolist()


def _memory(tensor: Tensor) -> Tensor:
    storage = tensor.detach().untyped_storage()
    return torch.tensor([], dtype=torch.uint8, device=tensor.device).set_(storage)
