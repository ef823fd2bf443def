"""Which memory that was asked for without values has some by now: what was never written is another in each run."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor.probes.internal import memory_of, untraced
from nsa_doctor.probes.tensors.operations import UNWRITTEN

_MOST_ELEMENTS = 1 << 26  # of one piece of memory, beside which a mask is kept


class WrittenMemory:
    """Follows `torch.empty` and its like, and all that is written into what they return, element by element."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[Tensor, int]] = {}  # by memory: which elements, and of how many bytes each

    def ran(self, operation: str, results: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Take note of an operation, which has written into these tensors."""
        with untraced():
            for tensor in written:
                if (view := self._view(tensor)) is not None:
                    view.fill_(True)
            for tensor in results if operation in UNWRITTEN else ():
                count = tensor.untyped_storage().nbytes() // tensor.itemsize
                if 0 < count <= _MOST_ELEMENTS and not tensor.is_meta:
                    self._written[memory_of(tensor)] = torch.zeros(count, dtype=torch.bool), tensor.itemsize

    def is_written(self, tensor: Tensor) -> bool:
        """Whether every element of it has been written since its memory was asked for, as far as that was followed."""
        with untraced():
            view = self._view(tensor)
            return view is None or bool(view.all())

    def _view(self, tensor: Tensor) -> Tensor | None:
        """Of the mask what the tensor is of its memory, what is repeated once; None where it is not followed."""
        held, itemsize = self._written.get(memory_of(tensor), (None, 0))
        if held is None or (itemsize, held.numel()) != (tensor.itemsize, tensor.untyped_storage().nbytes() // itemsize):
            return None
        sizes = [
            min(size, 1) if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ]
        return held.as_strided(sizes, tensor.stride(), tensor.storage_offset())
