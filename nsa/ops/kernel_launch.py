"""How kernels are launched that follow each other closely, step after step."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_ALIGNED = 16  # bytes, as compiled kernels expect of every pointer


class Launch:
    """A kernel on a grid, its last arguments the same every time.

    The first call compiles it; those that follow skip what Triton finds out of the arguments each time, which would
    take longer than the kernel.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        args: Sequence[Any],
        sizes: dict[str, Any],
        options: dict[str, int],
    ) -> None:
        self._kernel, self._grid, self._args, self._sizes, self._options = kernel, grid, args, sizes, options
        self._again: Any = None
        self._rest: tuple[Any, ...] = ()

    def __call__(self, *varying: Tensor) -> None:
        addresses = [x.data_ptr() for x in varying]
        if self._again is not None and not any(address % _ALIGNED for address in addresses):
            self._again(*addresses, *self._rest)
            return
        compiled = self._kernel[self._grid](*varying, *self._args, **self._sizes, **self._options)
        if compiled is not None and not any(address % _ALIGNED for address in addresses):  # else it is interpreted
            self._again = compiled[self._grid]
            fixed = [x.data_ptr() if isinstance(x, Tensor) else x for x in self._args]
            names = self._kernel.arg_names[len(varying) + len(fixed) :]
            self._rest = (*fixed, *(self._sizes[name] for name in names))


def fit_at_once(num_programs: int, device: torch.device) -> bool:
    """Whether each of so many programs has a multiprocessor of a GPU to itself."""
    return device.type == "cuda" and num_programs <= torch.cuda.get_device_properties(device).multi_processor_count


def overlap(device: torch.device) -> bool:
    """Whether kernels are launched while the one before still runs: on a Hopper GPU or a newer one."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def take_turn(OVERLAPS: tl.constexpr):
    """Wait until the kernel before has written all."""
    if OVERLAPS:
        gdc_wait()


@triton.jit
def pass_turn(OVERLAPS: tl.constexpr):
    """Let the next kernel be launched once every program has come this far or ended.

    Behind what takes long: programs that wait would keep those of this kernel from starting.
    """
    if OVERLAPS:
        gdc_launch_dependents()
