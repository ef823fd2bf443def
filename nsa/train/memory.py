"""How many bytes this process holds, on its GPU and in all."""

from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096


def memory(device: torch.device) -> dict[str, int | None]:
    """`gpu_mem_alloc` and `gpu_mem_reserved`, None on a CPU, and `rss_bytes`, None where the system does not say."""
    is_gpu = device.type == "cuda"
    return {
        "gpu_mem_alloc": torch.cuda.memory_allocated(device) if is_gpu else None,
        "gpu_mem_reserved": torch.cuda.memory_reserved(device) if is_gpu else None,
        "rss_bytes": _resident_bytes(),
    }


def memory_in_use(device: torch.device) -> int | None:
    """The one that counts on this device."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident_bytes()


def _resident_bytes() -> int | None:
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
