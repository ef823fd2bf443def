"""Finds the checks: what they declare without importing them, a check itself when it is asked for."""

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path

from nsa_doctor.core.check import FIRST_VERSION, PROFILES, Check, Command, Kind, Manual, Profile, usual_priority
from nsa_doctor.core.check_file import CheckFileError, docstring_of, read_check_file
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.errors import Caught, OptionError, attempt
from nsa_doctor.core.facts import Fact, Violation
from nsa_doctor.core.torch_errors import TorchError

ENTRY_POINTS = "nsa_doctor.checks"
_PACKAGE = "nsa_doctor.checks"
_KINDS: dict[Kind, str] = {
    "module": "a module",
    "function": "a function (nsa-doctor run --subject fn:package.module:function --like CONVENTION)",
    "checkpoint": "a checkpoint (nsa-doctor gate-stats FILE)",
    "run": "a training run (nsa-doctor watch RUN_DIR)",
    "data": "a source of batches (nsa-doctor data --config FILE)",
}
_MOST_NEAR = 3
_LIKENESS, _LIKENESS_OF_A_SLIP = 0.6, 0.85
_SHORTEST_BEGINNING, _LONGEST_WORD = 2, 60
_NAME_OF_A_CHECK = re.compile(r"[a-z]{3}\d{3}_[a-z0-9_]+")


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
    unless: tuple[Declaration, ...] = ()
    telling: bool = False
    since: str = FIRST_VERSION


def entries() -> dict[str, Entry]:
    """Every check by code, ascending.

    Raises CheckFileError for a file that is no check, a code used twice, and two checks that answer one fact.
    """
    found: dict[str, Entry] = {}
    answered: dict[tuple[type, str], Entry] = {}
    for module, path in _files():
        entry = _read(module, path)
        code = entry.manual.code
        if code in found:
            raise CheckFileError(f"check file {path}: the code {code} is that of {found[code].path} too")
        found[code] = entry
        for fact in (*entry.answers, *entry.fuzzed):
            other = answered.setdefault((type(fact), fact), entry)
            if other is not entry:
                raise CheckFileError(f"check file {path}: {fact.value!r} is answered by {other.path} already")
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


def priorities(codes: Iterable[str]) -> dict[str, int]:
    """How early findings of each code are reported, codes of checks that are not installed included."""
    known = entries()
    return {code: known[code].priority if code in known else usual_priority(code) for code in codes}


def of_kind(examines: Kind) -> list[Entry]:
    """The checks of one kind of thing, by code."""
    return [entry for entry in entries().values() if entry.examines == examines]


def manuals() -> dict[str, Manual]:
    """Every check's manual by code, ascending, read from the source alone."""
    return {code: entry.manual for code, entry in entries().items()}


def manual(word: str) -> Manual:
    """The manual of one check, by its code or its name; raises ValueError with those that are nearest."""
    known = manuals()
    wanted = word.strip().lower()[:_LONGEST_WORD]
    found = next((each for code, each in known.items() if wanted in (code.lower(), each.name)), None)
    if found is None:
        near = [f"{code} {known[code].name}" for code in _near(wanted, known)]
        hint = f"did you mean {' or '.join(near)}" if near else "nsa-doctor list shows every code"
        raise ValueError(f"unknown check {word[:_LONGEST_WORD]!r}: {hint}")
    return found


def _near(word: str, known: Mapping[str, Manual]) -> list[str]:
    """The few codes that a word may have meant: those that begin with it, or look like it, or whose names do."""
    names = {name: code for code, each in known.items() for name in (code.lower(), each.name)}
    if slip := difflib.get_close_matches(word, names, n=1, cutoff=_LIKENESS_OF_A_SLIP):
        return [names[slip[0]]]
    close = [names[name] for name in difflib.get_close_matches(word, names, n=_MOST_NEAR, cutoff=_LIKENESS)]
    begun = [code for code in known if len(word) >= _SHORTEST_BEGINNING and code.lower().startswith(word)]
    parts = set(re.findall(r"[a-z]{4,}", word))
    sharing = [code for code, each in known.items() if parts & set(each.name.split("-"))]
    return list(dict.fromkeys((*begun, *close, *sharing)))[:_MOST_NEAR]


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
    """Import one check; raises CheckFileError for a foreign one that cannot be."""
    module, path = _modules()[code]
    imported = attempt(lambda: importlib.import_module(module))
    if isinstance(imported, Caught):
        if isinstance(imported.error, KeyboardInterrupt) or module.startswith(f"{_PACKAGE}."):
            raise imported.error
        raise CheckFileError(f"check file {path}: it cannot be imported: {imported.sentence}") from imported.error
    check = imported.CHECK
    assert isinstance(check, Check)
    return check if check.doc else replace(check, doc=docstring_of(path))  # python -OO keeps none


def check_files() -> list[Path]:
    """The source file of every check."""
    return [path for _, path in _files()]


def _files() -> Sequence[tuple[str, Path]]:
    """(module, file) of every check: ours, and those of packages that offer some by an entry point."""
    return _files_found_on(tuple(sys.path))


@lru_cache(maxsize=8)
def _files_found_on(_path: tuple[str, ...]) -> Sequence[tuple[str, Path]]:
    """Listed once for each search path: the metadata of every installed package are read for it."""
    packages = [_PACKAGE, *sorted({point.module for point in entry_points(group=ENTRY_POINTS)})]
    return [
        (".".join((package, *path.relative_to(folder).with_suffix("").parts)), path)
        for package in packages
        for folder in _folders(package)
        for path in sorted(folder.rglob("*.py"))
        if _NAME_OF_A_CHECK.fullmatch(path.stem)
    ]


def _folders(package: str) -> list[Path]:
    spec = attempt(lambda: importlib.util.find_spec(package))  # imports the packages it lies in
    if isinstance(spec, Caught):
        if isinstance(spec.error, KeyboardInterrupt):
            raise spec.error
        raise CheckFileError(f"entry point {ENTRY_POINTS}: {package} cannot be imported: {spec.sentence}")
    if spec is None or spec.submodule_search_locations is None:
        raise CheckFileError(f"entry point {ENTRY_POINTS}: {package} must be a package that holds check files")
    return [Path(place) for place in spec.submodule_search_locations]


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


@cache
def _read(module: str, path: Path) -> Entry:
    """Read once, and before any thread starts: CPython 3.11 cannot parse in two at a time."""
    manual, declared = read_check_file(path)
    declared.setdefault("priority", usual_priority(manual.code))
    return Entry(manual=manual, path=path, module=module, **declared)


def prefixes(option: str, text: str | None) -> tuple[str, ...]:
    """Codes or their beginnings, as `FWD,NAN`."""
    words = tuple(dict.fromkeys(word.strip().upper() for word in (text or "").split(",") if word.strip()))
    if text is not None and not words:
        raise OptionError(f"{option} must name codes or families, such as FWD,NAN, got {text!r}")
    return words
