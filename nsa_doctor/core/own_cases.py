"""Our regression cases are the package `nsa_doctor.regressions`: in a checkout they lie beside the doctor."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from nsa_doctor.core.package import PACKAGE_ROOT

OWN_CASES = "nsa_doctor.regressions"


class _InTheCheckout(MetaPathFinder):
    """Finds the package where it is not installed; asked last, so that what is installed counts."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first = PACKAGE_ROOT.parent / "regressions" / "__init__.py"
        if fullname != OWN_CASES or not first.is_file():
            return None
        return importlib.util.spec_from_file_location(OWN_CASES, first, submodule_search_locations=[str(first.parent)])


def find_own_cases() -> None:
    """Let `nsa_doctor.regressions` be imported from a checkout, whatever else is called `regressions`."""
    if not any(isinstance(finder, _InTheCheckout) for finder in sys.meta_path):
        sys.meta_path.append(_InTheCheckout())
