"""Keeps what a subject does to the process from reaching the next measurement."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.internal import convert_tensors


@dataclass
class StateChanges:
    """What the code inside `preserved_state` left changed, in words; filled when the region ends."""

    seen: list[str] = field(default_factory=list)


@contextmanager
def preserved_state(*, random_too: bool = True) -> Iterator[StateChanges]:
    """Restore default dtype, grad mode, threads and the like at the end, and random states; say what had changed."""
    changes = StateChanges()
    saved = [(name, read(), write) for name, read, write in _global_state()]
    generators = saved_generators() if random_too else {}
    try:
        yield changes
    finally:
        for (name, before, write), (_, read, _) in zip(saved, _global_state(), strict=True):
            if read() != before:
                changes.seen.append(name)
                write(before)
        if random_too:
            restore_generators(generators)


def cast(module: nn.Module, dtype: torch.dtype | None, device: torch.device | str | None = None) -> nn.Module:
    """The module in another floating dtype and device; complex numbers stay complex, of the width that goes with it."""
    if device is not None:
        module.to(device)  # by position: a module's own `to` may call it otherwise
    if dtype is None:
        return module
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64

    def converted(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(wide)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return convert_tensors(module, converted)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's (if loaded) and torch's generators."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if torch.cuda.is_initialized():
        torch.manual_seed(seed)
    else:  # torch would format a stack for the day CUDA starts
        torch.default_generator.manual_seed(seed)


def _global_state() -> list[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    return [
        ("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        ("default device", torch.get_default_device, _set_default_device),
        ("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        ("number of threads", torch.get_num_threads, torch.set_num_threads),
        (
            "deterministic algorithms",
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        ("anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        ("float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        ("current folder", _current_folder, _go_to_folder),
        ("module search path", lambda: list(sys.path), _set_search_path),
    ]


def _set_default_device(device: torch.device) -> None:
    # A CPU set by name would leave torch's device mode switched on.
    torch.set_default_device(None if device.type == "cpu" else device)


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted under our feet
        return None


def _go_to_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _set_search_path(path: list[str]) -> None:
    sys.path[:] = path


def saved_generators() -> dict[str, Any]:
    """The states of Python's, torch's and NumPy's generators."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def next_draws() -> dict[str, float]:
    """What Python's, torch's and NumPy's generators give next, by whose each is."""
    draws = {"Python": random.random(), "torch": float(torch.rand((), dtype=torch.float64))}  # noqa: S311 (no secret)
    if (numpy := sys.modules.get("numpy")) is not None:
        draws["NumPy"] = float(numpy.random.random())
    return draws


def restore_generators(states: dict[str, Any]) -> None:
    """Set the generators back to what `saved_generators` returned."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


@cache  # what a subject is made to believe of its devices is not meant
def can_be_forked() -> bool:
    """Whether a process that has used torch may be: not where there is a GPU, which asking for one touches."""
    return not torch.backends.cuda.is_built() or torch.cuda.device_count() == 0
