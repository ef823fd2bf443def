"""Whether there is room for a model of its real sizes, counted before any of it is made."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nsa_doctor.adapters.hugging_face.classes import ModelClasses
from nsa_doctor.subject.contract import SubjectUnusableError

_BYTES = 4 + 4 + 8  # of a parameter: in float32, in a copy of it, and in the float64 that checks compare in


def require_room(name: str, classes: ModelClasses) -> None:
    """SubjectUnusableError where a model of the sizes that its configuration has does not fit into free memory."""
    number, free = count_parameters(classes, classes.given), free_bytes()
    if free is not None and number * _BYTES > free:
        raise SubjectUnusableError(
            f"hf:{name} of its real sizes has {number / 1e9:.2f} billion parameters, which take "
            f"{number * _BYTES / 1e9:.1f} GB in float32 and float64, and {free / 1e9:.1f} GB are free; "
            f"leave --size out for a small one"
        )


def count_parameters(classes: ModelClasses, values: Mapping[str, Any]) -> int:
    """Of a model with these values of its configuration, none of which is made."""
    with torch.device("meta"):
        module = classes.built(values)
    return sum(parameter.numel() for parameter in module.parameters())


def free_bytes() -> int | None:
    """Memory that this process may still take, in bytes; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
