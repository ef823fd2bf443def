"""The doctor: examines sparse-attention code and says what is wrong, where, and what to do about it.

`examine` is `nsa-doctor run` from Python; the other names are for authors of adapters and of checks. Each is imported
when it is asked for, so that the command line starts without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nsa_doctor.core.former_paths import keep_former_paths
from nsa_doctor.core.own_cases import find_own_cases

if TYPE_CHECKING:
    from nsa_doctor.adapters.adapter import Adapter
    from nsa_doctor.cli.examine import Examination, NoGoError, examine
    from nsa_doctor.core.check import Check
    from nsa_doctor.core.finding import Decision, Finding, Note, Report, Result, Verdict
    from nsa_doctor.core.measurement import Place
    from nsa_doctor.subject.contract import Subject
    from nsa_doctor.subject.function import Arguments, Convention, Keyword
    from nsa_doctor.subject.training_loop import TrainingLoop

__all__ = [
    "Adapter",
    "Arguments",
    "Check",
    "Convention",
    "Decision",
    "Examination",
    "Finding",
    "Keyword",
    "NoGoError",
    "Note",
    "Place",
    "Report",
    "Result",
    "Subject",
    "TrainingLoop",
    "Verdict",
    "examine",
]

_HOMES = {
    "nsa_doctor.adapters.adapter": ("Adapter",),
    "nsa_doctor.cli.examine": ("Examination", "NoGoError", "examine"),
    "nsa_doctor.core.check": ("Check",),
    "nsa_doctor.core.finding": ("Decision", "Finding", "Note", "Report", "Result", "Verdict"),
    "nsa_doctor.core.measurement": ("Place",),
    "nsa_doctor.subject.contract": ("Subject",),
    "nsa_doctor.subject.function": ("Arguments", "Convention", "Keyword"),
    "nsa_doctor.subject.training_loop": ("TrainingLoop",),
}

keep_former_paths()  # such as nsa_doctor.adapter
find_own_cases()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__", "testing"})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("nsa_doctor.core.report_facts").installed_version("nsa-doctor")
    if name == "testing":
        return importlib.import_module("nsa_doctor.testing")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
