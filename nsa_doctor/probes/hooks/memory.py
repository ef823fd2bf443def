"""Peak memory of a region: above what was held when it began."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch


def start_peak(device: torch.device) -> Callable[[], int | None]:
    """Begin a region; the function returned ends it and gives its peak in bytes, or None where that is not known.

    On the CPU this is the process's resident memory as Linux counts it, so pages of libraries first touched count too.
    """
    gc.collect(1)  # what the last run left in cycles; a full collection walks all of torch
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        return lambda: torch.cuda.max_memory_allocated(device) - before
    return_free_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:
        return lambda: None
    resident = _status_bytes("VmRSS")

    def peak() -> int | None:
        highest = _status_bytes("VmHWM")
        return None if highest is None or resident is None else max(0, highest - resident)

    return peak


def return_free_memory() -> None:
    """Give freed memory back to the system, so that using it again counts (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(key: str) -> int | None:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return None
