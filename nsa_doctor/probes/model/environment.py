"""Reads this machine's facts: versions, devices, driver, and whether what is installed can be imported."""

import ctypes
import importlib
import importlib.metadata
import platform
import re
from pathlib import Path
from typing import Any

import torch

from nsa_doctor.core.environment import Environment, Gpu
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.own_nsa import ours

_HEAD_SIZE = 64
_NAMED = ("nsa-doctor", "numpy", "safetensors", "triton", "flash-attn", "transformer-engine", "xformers")


def environment() -> Environment:
    """The facts of this machine; flash-attn is imported to find out whether it can be."""
    packages = {name: _version(name) for name in _NAMED}
    flash = packages["flash-attn"]
    imported = attempt(lambda: importlib.import_module("flash_attn")) if flash else None
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        torch=str(torch.__version__),
        torch_cuda=_pair(torch.version.cuda),
        driver=_driver(),
        driver_cuda=_driver_cuda(),
        has_nvidia_device=Path("/proc/driver/nvidia/version").exists(),
        gpus=_gpus(),
        architectures=tuple(torch.cuda.get_arch_list()) if torch.cuda.is_available() else (),
        triton=packages["triton"],
        triton_wanted=_wanted_triton(),
        flash=flash,
        flash_error=imported.sentence if isinstance(imported, Caught) else "",
        packages={name: found for name, found in packages.items() if found},
    )


def flags() -> dict[str, str | None]:
    """The flags of nsa, as the environment holds them."""
    with ours():
        from nsa.backends import requested_flags

    return requested_flags()


def routes(device: str) -> list[dict[str, Any]]:
    """What serves each branch of nsa in float32 and bfloat16, why, and what that makes of the reports' three words."""
    with ours():
        from nsa.backends import BRANCHES, route

    found = []
    for dtype in (torch.float32, torch.bfloat16):
        chosen = attempt(lambda dtype=dtype: route(torch.device(device), dtype, _HEAD_SIZE))
        if isinstance(chosen, Caught):
            facts = {"effective": "refused", "why": chosen.sentence, "fa2": {}}
            return [{"branch": "all", "dtype": "any", "device": device, **facts}]
        for branch in BRANCHES:
            one = getattr(chosen, branch)
            facts = {"effective": one.effective, "why": one.why, "fa2": chosen.fa2_effective()}
            found.append({"branch": branch, "dtype": str(dtype)[6:], "device": device, **facts})
    return found


def _version(name: str) -> str:
    found = attempt(lambda: importlib.metadata.version(name))
    return "" if isinstance(found, Caught) else found


def _pair(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _driver() -> str:
    text = attempt(lambda: Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
    found = None if isinstance(text, Caught) else re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""


def _driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA the driver serves, where torch is built for it and there is a driver: 12080 is 12.8."""
    number = 0 if torch.version.cuda is None else attempt(_newest_cuda)
    return None if isinstance(number, Caught) or not number else (number // 1000, number % 1000 // 10)


def _newest_cuda() -> int:
    """What the driver itself says; asking for it touches no GPU. 0 for no answer."""
    number = ctypes.c_int()
    failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return 0 if failed else number.value


def _gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    found = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        found.append(
            Gpu(
                name=properties.name,
                capability=(properties.major, properties.minor),
                total_bytes=properties.total_memory,
            )
        )
    return tuple(found)


def _wanted_triton() -> str:
    """The version of triton that this build of torch names among its requirements."""
    requirements = attempt(lambda: importlib.metadata.requires("torch") or [])
    lines = [] if isinstance(requirements, Caught) else requirements
    found = (re.match(r"triton\s*==\s*([\w.+]+)", line) for line in lines)
    return next((match[1] for match in found if match), "")
