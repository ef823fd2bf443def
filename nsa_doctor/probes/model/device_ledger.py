"""Where each piece of memory claims to lie, and the operations that torch refuses on a GPU for it."""

from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.internal import frame_above
from nsa_doctor.probes.internal import DispatchWatcher, StorageWeakRef, is_transformed, storage_key
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Record:
    """The device of a piece of memory, None of what torch made for itself and goes with any.

    Of what lies elsewhere than on the device in use `made` is the line that made it, and `is_asked_for` says that it
    named the device; `source` is the key of the memory that was there before and that it was computed from.
    """

    device: torch.device | None
    made: Line | None = None
    is_asked_for: bool = False
    source: int = 0

    @property
    def is_on_gpu(self) -> bool:
        """Whether it claims to lie elsewhere than on the CPU."""
        return self.device not in (None, CPU)


@dataclass(frozen=True)
class Stray:
    """The tensor that met those of the device in use and does not lie there: what is known of it."""

    tensor: Tensor
    record: Record


class MixedDevicesError(RuntimeError):
    """What torch raises on a GPU of tensors on two devices."""

    def __init__(self, operation: str, devices: tuple[torch.device | None, ...], stray: Stray) -> None:
        super().__init__(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{devices[0]} and {devices[1]}! (operation {operation})"
        )
        self.stray = stray


class RefusedError(TypeError):
    """What torch raises on a GPU of one argument, whatever lies where: memory or numbers of the host asked of it."""


class Ledger:
    """What is known of each piece of memory; that of which nothing is lies on the CPU and was there before."""

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._records: dict[int, tuple[StorageWeakRef, Record]] = {}  # the reference keeps its key from being reused

    def of(self, tensor: Tensor) -> Record:
        """What is known of a tensor's memory; what has none of its own goes with any."""
        key = memory_key(tensor)
        if not key:
            return Record(None)
        _, record = self._records.get(key, (None, None))
        return Record(CPU, source=key) if record is None else record

    def is_known(self, tensor: Tensor) -> bool:
        """Whether anything was recorded of a tensor's memory."""
        return memory_key(tensor) in self._records

    def write(self, tensor: Tensor, record: Record) -> None:
        """Record where a tensor's memory lies, and that of its views with it."""
        if key := memory_key(tensor):
            self._records[key] = (StorageWeakRef(tensor.untyped_storage()), record)

    def taken_in(self, frame: FrameType) -> Record:
        """The record of memory that torch takes in from outside (numbers, an array) for the code of a frame.

        Torch's own code puts it where it wants it, and of `torch.tensor` the function is seen as well.
        """
        return self.made_here() if self._frames.rank_of(frame.f_code) >= 2 else Record(None)

    def made_here(self, device: torch.device = CPU, *, is_asked_for: bool = False) -> Record:
        """The record of what the running line of the subject makes on a device."""
        frame: FrameType | None = frame_above(1)
        while frame is not None and self._frames.rank_of(frame.f_code) < 2:
            frame = frame.f_back
        if frame is None:
            return Record(device)
        code = frame.f_code
        line = Line(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
        return Record(device, line, is_asked_for)


class Operations(DispatchWatcher):
    """Refuses operations whose tensors lie on two devices, and records where their results lie."""

    def __init__(self, ledger: Ledger, device: torch.device) -> None:
        super().__init__()
        self._ledger = ledger
        self._device = device

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; MixedDevicesError in place of what a GPU refuses."""
        name, given = operation_name(func), tensors_in(args, kwargs)
        if name == "lift_fresh" and not self._ledger.is_known(given[0]):
            self._ledger.write(given[0], self._ledger.taken_in(frame_above(2)))
        found = self._of_results(name, given, tensors_in(args[2:3]) if name in _PICKING else [])
        keys = {memory_key(each) for each in given}
        results = func(*args, **kwargs)
        for each in tensors_in(results):
            if memory_key(each) not in keys:
                self._ledger.write(each, found)
        if name == "pack_padded_sequence":
            self._ledger.write(results[1], Record(CPU))  # rows per step: numbers for the host
        return results

    def _of_results(self, name: str, given: list[Tensor], stored: list[Tensor]) -> Record:
        held = [(each, self._ledger.of(each)) for each in given]
        if not held:
            return Record(None)
        first = held[0][1]
        if name in _CROSSING:
            return first
        placed = [
            (tensor, record)
            for tensor, record in held
            if record.device is not None
            and not (record.device == CPU and _goes_along(name, tensor, given[0], first, stored))
        ]
        if other := next((each for each in placed if each[1].device != placed[0][1].device), None):
            pair = (placed[0], other)
            stray = next((each for each in pair if each[1].device != self._device), other)
            raise MixedDevicesError(name, tuple(record.device for _, record in pair), Stray(*stray))
        return placed[0][1] if placed else first


def memory_key(tensor: Tensor) -> int:
    """Tells one piece of memory from another; 0 of what has none of its own, or none that can be seen."""
    if tensor.layout != torch.strided or is_transformed(tensor):
        return 0
    return storage_key(tensor.untyped_storage())


def _goes_along(name: str, tensor: Tensor, written: Tensor, first: Record, stored: list[Tensor]) -> bool:
    """Whether a GPU takes a tensor on the CPU: a number that is read, and what picks from a tensor that lies there."""
    if tensor.ndim == 0:
        return name not in _WITHOUT_NUMBERS and not (name.endswith("_") and tensor is written)
    is_index = tensor.dtype in _PICKS and not any(tensor is each for each in stored)
    return name in _PICKING and first.is_on_gpu and is_index


# Copies, and operations whose lengths belong on the CPU.
_CROSSING = frozenset({"copy_", "to_copy", "set_", "lift_fresh", "local_scalar_dense"}) | frozenset(
    {"pack_padded_sequence", "pad_packed_sequence"}
    | {"as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter"}
)
_PICKING = frozenset({"index", "unsafe_index", "index_put", "index_put_", "unsafe_index_put", "index_put_impl_"})
_PICKS = frozenset({torch.int64, torch.int32, torch.bool, torch.uint8})
# Operations that refuse a number on the CPU beside tensors on a GPU: measured, as docs/benchmarks.md says.
_WITHOUT_NUMBERS = frozenset(
    {"addmm", "addr", "bucketize", "cat", "clamp", "clamp_max", "clamp_min", "complex", "embedding", "equal", "gcd"}
    | {"igamma", "igammac", "index_add", "index_copy", "index_reduce", "index_select", "inner", "lcm", "logaddexp"}
    | {"masked_scatter", "nextafter", "polar", "prelu", "stack", "take"}
)
