"""Checks of your own, run in a test; and runs, checkpoints and batches made for injected bugs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsa_doctor.testing.check_runs import run_check

__all__ = ["run_check"]


def __getattr__(name: str) -> Any:
    if name == "run_check":  # the other modules of this package do without torch
        return importlib.import_module("nsa_doctor.testing.check_runs").run_check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
