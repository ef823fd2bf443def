"""Finds the checks: what they declare without importing them, a check itself when it is asked for."""

import ast
import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from nsa_doctor.check import PROFILES, Check, Command, Kind, Manual, Profile, parse_manual, usual_priority
from nsa_doctor.facts import Fact, Violation
from nsa_doctor.torch_errors import TorchError

ENTRY_POINTS = "nsa_doctor.checks"
_PACKAGE = "nsa_doctor.checks"
_KINDS: dict[Kind, str] = {
    "module": "a module",
    "checkpoint": "a checkpoint (nsa-doctor gate-stats FILE)",
    "run": "a training run (nsa-doctor watch RUN_DIR)",
    "data": "a source of batches (nsa-doctor data --config FILE)",
}
_NAME_OF_A_CHECK = re.compile(r"[a-z]{3}\d{3}_[a-z0-9_]+")
_DECLARED = (
    *("profile", "needs", "blocked_by", "explained_by", "isolate", "examines"),
    *("priority", "answers", "explains", "fuzzed", "commands"),
)
_NAMES: Mapping[str, type[StrEnum]] = {
    "answers": Fact,
    "explains": TorchError,
    "fuzzed": Violation,
    "commands": Command,
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a check's file declares, read from its source: its manual and the keywords of its `Check`."""

    manual: Manual
    path: Path
    module: str
    profile: Profile = "quick"
    needs: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    isolate: bool = False
    examines: Kind = "module"
    priority: int
    answers: tuple[Fact, ...] = ()
    explains: tuple[TorchError, ...] = ()
    fuzzed: tuple[Violation, ...] = ()
    commands: tuple[Command, ...] = ()


def entries() -> dict[str, Entry]:
    """Every check by code, ascending; raises ValueError when a code is used twice, or two checks answer one fact."""
    found: dict[str, Entry] = {}
    answered: dict[tuple[type, str], Entry] = {}
    for module, path in _files():
        entry = _read(module, path)
        code = entry.manual.code
        if code in found:
            raise ValueError(f"{path.name}: the code {code} is used twice")
        found[code] = entry
        for fact in (*entry.answers, *entry.fuzzed):
            other = answered.setdefault((type(fact), fact), entry)
            if other is not entry:
                raise ValueError(f"{path.name}: {fact.value!r} is answered by {other.path.name} already")
    return dict(sorted(found.items()))


def answering(fact: Fact) -> Entry:
    """The check that a fact belongs to."""
    return _answering()[fact]


def fuzzed(violation: Violation) -> Entry:
    """The check that a property which fuzzing found broken belongs to."""
    return _fuzzed()[violation]


def of_command(command: Command) -> list[Entry]:
    """The checks that declare the command, in order of importance."""
    return sorted((entry for entry in entries().values() if command in entry.commands), key=in_order_of_importance)


def in_order_of_importance(entry: Entry) -> tuple[int, str]:
    """A key to sort by: what has to be mended first comes first."""
    return entry.priority, entry.manual.code


def priority_of(code: str) -> int:
    """How early findings of that code are reported, the code of a check that is not installed included."""
    known = entries()
    return known[code].priority if code in known else usual_priority(code)


def of_kind(examines: Kind) -> list[Entry]:
    """The checks of one kind of thing, by code."""
    return [entry for entry in entries().values() if entry.examines == examines]


def manuals() -> dict[str, Manual]:
    """Every check's manual by code, ascending, read from the source alone."""
    return {code: entry.manual for code, entry in entries().items()}


def manual(code: str) -> Manual:
    """The manual of one check; raises ValueError with the nearest known code."""
    known = manuals()
    if code.upper() not in known:
        near = difflib.get_close_matches(code.upper(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"
        raise ValueError(f"unknown check {code!r}: {hint}")
    return known[code.upper()]


def select(select: Sequence[str], ignore: Sequence[str], profile: Profile, examines: Kind = "module") -> list[Entry]:
    """Checks whose code starts with one of `select` (all, if empty) and none of `ignore`, as the profile has them.

    A code named in full is part of every profile; checks of another kind of subject are none at all. Raises ValueError
    for a prefix no code starts with, and when nothing is left.
    """
    every = entries()
    known = {code: entry for code, entry in every.items() if entry.examines == examines}
    for prefix in (*select, *ignore):
        if not any(code.startswith(prefix) for code in known):
            families = ", ".join(dict.fromkeys(code[:3] for code in known))
            other = next((entry for code, entry in every.items() if code.startswith(prefix)), None)
            if other is not None:
                raise ValueError(
                    f"{prefix} examines {_KINDS[other.examines]}; here checks of {_KINDS[examines]} are run"
                )
            raise ValueError(f"no check's code starts with {prefix!r}; families are {families}")
    deepest = PROFILES.index(profile)
    chosen = [
        entry
        for code, entry in known.items()
        if (not select or any(code.startswith(prefix) for prefix in select))
        and not any(code.startswith(prefix) for prefix in ignore)
        and (code in select or PROFILES.index(entry.profile) <= deepest)
    ]
    if not chosen:
        raise ValueError(f"no check is left in the profile {profile}: nothing would be examined")
    return chosen


def load(code: str) -> Check:
    """Import one check."""
    module, path = _modules()[code]
    check = importlib.import_module(module).CHECK
    assert isinstance(check, Check)
    return check if check.doc else replace(check, doc=_docstring(path))  # python -OO keeps none


def check_files() -> list[Path]:
    """The source file of every check."""
    return [path for _, path in _files()]


def _files() -> Iterator[tuple[str, Path]]:
    """(module, file) of every check: ours, and those of packages that offer some by an entry point."""
    packages = [_PACKAGE, *sorted({point.module for point in entry_points(group=ENTRY_POINTS)})]
    for package in packages:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            folder = Path(place)
            for path in sorted(folder.rglob("*.py")):
                if _NAME_OF_A_CHECK.fullmatch(path.stem):
                    yield ".".join((package, *path.relative_to(folder).with_suffix("").parts)), path


@cache
def _modules() -> Mapping[str, tuple[str, Path]]:
    """The module of every check and its file, by its code."""
    return {path.stem.partition("_")[0].upper(): (module, path) for module, path in _files()}


@cache
def _answering() -> Mapping[Fact, Entry]:
    return {fact: entry for entry in entries().values() for fact in entry.answers}


@cache
def _fuzzed() -> Mapping[Violation, Entry]:
    return {violation: entry for entry in entries().values() for violation in entry.fuzzed}


def _docstring(path: Path) -> str | None:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@cache
def _read(module: str, path: Path) -> Entry:
    """Parsed once, and before any thread starts: CPython 3.11 cannot parse in two at a time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    manual = parse_manual(ast.get_docstring(tree))
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Check")
    declared = {word.arg: _literal(word, path) for word in call.keywords if word.arg in _DECLARED}
    priority = declared.pop("priority", None)
    priority = usual_priority(manual.code) if priority is None else priority
    return Entry(manual=manual, path=path, module=module, priority=priority, **declared)


def _literal(word: ast.keyword, path: Path) -> Any:
    """The value of a declared keyword; names of facts, errors and properties as members of their lists."""
    try:
        value = ast.literal_eval(word.value)
    except ValueError:
        raise ValueError(f"{path.name}: {word.arg} must be a literal, got {ast.unparse(word.value)}") from None
    kind = _NAMES.get(word.arg or "")
    if kind is None:
        return value
    known = {member.value: member for member in kind}
    for name in value:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}" if near else f"known are {', '.join(known)}"
            raise ValueError(f"{path.name}: {word.arg} cannot hold {name!r}: {hint}")
    return tuple(known[name] for name in value)
