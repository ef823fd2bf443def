"""Healthy but odd subjects: every public function without arguments, in a module of this folder, makes one."""

import importlib
import inspect
from pathlib import Path

from tests.false_go.examination import Healthy

HERE = Path(__file__).parent


def healthy_subjects() -> list[Healthy]:
    """All of them, and the hosts of the faults as they are."""
    names = [f"{__name__}.{file.stem}" for file in sorted(HERE.glob("[!_]*.py"))]
    names += [f"tests.false_go.hosts.{file.stem}" for file in sorted((HERE.parent / "hosts").glob("[!_]*.py"))]
    return [Healthy(name, factory) for name in names for factory in _factories(name)]


def _factories(name: str) -> list[str]:
    """The public functions of a module that take no arguments, in the order of their lines."""
    module = importlib.import_module(name)
    own = [
        (inspect.getsourcelines(made)[1], key)
        for key, made in vars(module).items()
        if inspect.isfunction(made) and made.__module__ == name and not key.startswith("_")
        if not inspect.signature(made).parameters
    ]
    return [key for _, key in sorted(own)]
