"""Fills memory that was asked for and not written, and says where it was asked for."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.tensors.operations import UNWRITTEN, operation_name

Fill = Literal["zeros", "other"]
_LARGE = 977.0  # within every dtype, and not what memory that was just given back holds


class Filled(DispatchWatcher):
    """Fills what `torch.empty` and its like return: with zeros, or with other values that are no worse.

    Of whole numbers, which may be indices, other values are 0, 1, 2 …. `is_chosen` says of which places memory is to
    be filled with other values; the rest gets zeros. What a kernel takes for itself and leaves unwritten is NaN. A
    dispatch mode is a base class by torch's design.
    """

    def __init__(self, places: Places, is_chosen: Callable[[Place], bool]) -> None:
        super().__init__()
        self.asked: dict[Place, None] = {}
        self._places, self._is_chosen = places, is_chosen

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Fill, until the region ends; what was compiled runs uncompiled."""
        with _alike_every_time(), self._places.watching(), self:
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, and write into what it left unwritten."""
        result = func(*args, **kwargs)
        if operation_name(func) in UNWRITTEN and isinstance(result, Tensor) and result.numel():
            place, is_own = self._places.here()
            if is_own and result.layout == torch.strided and not result.is_meta:
                self.asked[place] = None
                _fill(result, "other" if self._is_chosen(place) else "zeros")
        return result


@contextmanager
def _alike_every_time() -> Iterator[None]:
    """Let torch fill what its own kernels ask for (`torch.utils.deterministic.fill_uninitialized_memory`)."""
    was_on, only_warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that have no deterministic form
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_on, warn_only=only_warned)


def _fill(tensor: Tensor, how: Fill) -> None:
    if how == "zeros":
        tensor.zero_()
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(_LARGE)
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        limit = torch.iinfo(tensor.dtype).max
        tensor.copy_((torch.arange(tensor.numel(), device=tensor.device) % limit).view(tensor.shape))
