"""Reads what a check's file declares, its manual and the keywords of its `Check`, without running the file."""

import ast
import re
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, get_args

from nsa_doctor.core.check import PROFILES, Check, Command, Kind, Manual, parse_manual
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.facts import Fact, Violation
from nsa_doctor.core.nearest import nearest
from nsa_doctor.core.torch_errors import TorchError

_ALLOWED: Mapping[str, tuple[object, ...]] = {
    "profile": PROFILES,
    "examines": get_args(Kind),
    "isolate": (True, False),
    "telling": (True, False),
}
_OF_CODES = ("needs", "blocked_by", "explained_by")
_OF_NAMES: Mapping[str, type[StrEnum]] = {
    "answers": Fact,
    "explains": TorchError,
    "fuzzed": Violation,
    "commands": Command,
    "unless": Declaration,
}
_PRIORITY, _SINCE = "priority", "since"


class CheckFileError(ValueError):
    """A check's file cannot be used; one sentence names the file, the line and what is wrong with it."""


def read_check_file(path: Path) -> tuple[Manual, dict[str, Any]]:
    """The manual, and those keywords of `CHECK = Check(...)` that say when it is run; raises CheckFileError."""
    tree = _parsed(path)
    try:
        manual = parse_manual(ast.get_docstring(tree))
    except ValueError as error:
        _refuse(path, 1, str(error))
    if not path.stem.startswith(f"{manual.code.lower()}_"):
        _refuse(path, 1, f"its docstring says {manual.code}, so its name must start with {manual.code.lower()}_")
    return manual, _declared(path, _call(path, tree))


def docstring_of(path: Path) -> str | None:
    """The docstring of a file, as it is written there; raises CheckFileError."""
    return ast.get_docstring(_parsed(path))


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except OSError as error:
        _refuse(path, None, f"it cannot be read: {error.strerror}")
    except SyntaxError as error:
        _refuse(path, error.lineno, f"it is not Python: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        _refuse(path, None, f"it is not Python: {error}")


def _call(path: Path, tree: ast.Module) -> ast.Call:
    """The call in `CHECK = Check(...)`, by whichever name the file calls Check."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "CHECK" for target in targets):
            value = node.value  # type: ignore[attr-defined]
            if isinstance(value, ast.Call) and _is_check(value.func, tree):
                return value
            _refuse(path, node.lineno, "CHECK must be a call of Check, with its keywords written out")
    _refuse(path, None, "it must define CHECK = Check(doc=__doc__, run=run, planted=planted)")


def _is_check(function: ast.expr, tree: ast.Module) -> bool:
    imported = [name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names]
    known = {"Check", *(name.asname for name in imported if name.name == "Check" and name.asname)}
    return getattr(function, "attr", None) == "Check" or getattr(function, "id", None) in known


def _declared(path: Path, call: ast.Call) -> dict[str, Any]:
    if call.args:
        _refuse(path, call.lineno, "Check takes keywords alone")
    known = [field.name for field in fields(Check)]
    declared: dict[str, Any] = {}
    for word in call.keywords:
        if word.arg is None:
            _refuse(path, word.lineno, f"the keywords of Check must be written out, got **{ast.unparse(word.value)}")
        if word.arg not in known:
            _refuse(path, word.lineno, f"Check has no keyword {word.arg}; {nearest(word.arg, known)}")
        if word.arg in (*_ALLOWED, *_OF_CODES, *_OF_NAMES, _PRIORITY, _SINCE):
            declared[word.arg] = _value(path, word.arg, word.value)
    return declared


def _value(path: Path, name: str, node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        _refuse(path, node.lineno, f"{name} must be written out as a literal, got {ast.unparse(node)}")
    if name == _PRIORITY:
        if type(value) is not int:
            _refuse(path, node.lineno, f"priority must be a whole number, got {value!r}")
    elif name == _SINCE:
        if not isinstance(value, str) or not re.fullmatch(r"\d+(\.\d+)+", value):
            _refuse(path, node.lineno, f"since must be a version such as '1.2.0', got {value!r}")
    elif name in (*_OF_CODES, *_OF_NAMES):
        if not isinstance(value, tuple) or not all(isinstance(word, str) and word for word in value):
            _refuse(path, node.lineno, f"{name} must be a tuple of strings, got {value!r}")
        return tuple(_named(path, name, node.lineno, word) for word in value) if name in _OF_NAMES else value
    elif not any(value is allowed or (isinstance(value, str) and value == allowed) for allowed in _ALLOWED[name]):
        _refuse(path, node.lineno, f"{name} must be {' or '.join(map(repr, _ALLOWED[name]))}, got {value!r}")
    return value


def _named(path: Path, name: str, line: int, word: str) -> StrEnum:
    """The fact, error, property or command of that name."""
    known = {member.value: member for member in _OF_NAMES[name]}
    if word not in known:
        _refuse(path, line, f"{name} cannot hold {word!r}; {nearest(word, list(known))}")
    return known[word]


def _refuse(path: Path, line: int | None, wrong: str) -> NoReturn:
    raise CheckFileError(f"check file {path}{'' if line is None else f':{line}'}: {wrong}") from None
