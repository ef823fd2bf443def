"""Finds the checks: their manuals without importing them, a check itself when it is asked for."""

import ast
import difflib
import importlib
from pathlib import Path

from nsa_doctor.check import Check, Manual, parse_manual

_FOLDER = Path(__file__).parent / "checks"


def manuals() -> dict[str, Manual]:
    """Every check's manual by code, ascending, read from the source alone."""
    found: dict[str, Manual] = {}
    for path in check_files():
        manual = parse_manual(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
        if manual.code in found:
            raise ValueError(f"{path.name}: the code {manual.code} is used twice")
        found[manual.code] = manual
    return dict(sorted(found.items()))


def manual(code: str) -> Manual:
    """The manual of one check; raises ValueError with the nearest known code."""
    known = manuals()
    if code.upper() not in known:
        near = difflib.get_close_matches(code.upper(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"
        raise ValueError(f"unknown check {code!r}: {hint}")
    return known[code.upper()]


def load(code: str) -> Check:
    """Import one check."""
    path = next(path for path in check_files() if path.stem.startswith(f"{code.lower()}_"))
    module = importlib.import_module(f"nsa_doctor.checks.{path.parent.name}.{path.stem}")
    check = module.CHECK
    assert isinstance(check, Check)
    return check


def check_files() -> list[Path]:
    """The source file of every check."""
    return sorted(path for path in _FOLDER.glob("*/*.py") if path.stem != "__init__")
