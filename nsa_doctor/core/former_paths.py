"""Module paths that adapters and checks of users import, and where what they named lies."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_HOMES = {
    "nsa_doctor.adapter": "nsa_doctor.adapters.adapter",
    "nsa_doctor.benchmarks": "nsa_doctor.pytest.benchmarks",
    "nsa_doctor.check": "nsa_doctor.core.check",
    "nsa_doctor.finding": "nsa_doctor.core.finding",
    "nsa_doctor.measurement": "nsa_doctor.core.measurement",
    "nsa_doctor.repro": "nsa_doctor.core.reproduce",
    "nsa_doctor.runner": "nsa_doctor.core.errors",
}


class _FormerPaths(MetaPathFinder):
    """Finds a module at the path it had; its names are those of the module where they lie."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        home = _HOMES.get(fullname)
        found = None if home is None else importlib.util.find_spec(home)
        if home is None or found is None:
            return None
        spec = ModuleSpec(fullname, _Names(home), origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class _Names(Loader):
    def __init__(self, home: str) -> None:
        self._home = home

    def exec_module(self, module: ModuleType) -> None:
        names = vars(importlib.import_module(self._home))
        vars(module).update({name: value for name, value in names.items() if not name.startswith("__")})


def keep_former_paths() -> None:
    """Let code that imports a former path find what it named."""
    if not any(isinstance(finder, _FormerPaths) for finder in sys.meta_path):
        sys.meta_path.append(_FormerPaths())
