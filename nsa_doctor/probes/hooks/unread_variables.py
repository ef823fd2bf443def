"""Variables that a function assigns and never reads, at lines that a pass has come to."""

import ast
import linecache
from collections.abc import Iterable, Iterator

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_READING_ALL = ("locals", "vars", "eval", "exec")


def unread_at(places: Iterable[Place]) -> Iterator[tuple[str, Place]]:
    """The variable that each of these lines assigns alone, where nothing in its function reads it.

    What is taken apart into several is left alone, and so is a name that begins with an underscore.
    """
    trees: dict[str, ast.Module | Caught] = {}
    for place in places:
        if place.file not in trees:
            trees[place.file] = attempt(lambda place=place: ast.parse("".join(linecache.getlines(place.file))))
        tree = trees[place.file]
        name = None if isinstance(tree, Caught) else _unread(tree, place.line)
        if name is not None:
            yield name, place


def _unread(tree: ast.Module, line: int) -> str | None:
    around = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and _spans(node, line)]
    if not around:
        return None
    outermost, innermost = (choose(around, key=lambda node: node.lineno) for choose in (min, max))
    named = [node for node in ast.walk(outermost) if isinstance(node, ast.Name)]
    read = {node.id for node in named if isinstance(node.ctx, ast.Load)}
    shared = [node for node in ast.walk(outermost) if isinstance(node, (ast.Global, ast.Nonlocal, ast.AugAssign))]
    touched = {name for node in shared for name in _names_of(node)}
    for node in ast.walk(innermost):
        target = _target(node)
        if target is None or not _spans(node, line) or target.startswith("_"):
            continue
        return None if target in read | touched or read & set(_READING_ALL) else target
    return None


def _target(node: ast.AST) -> str | None:
    """The one plain name that an assignment gives its value to."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target = node.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.AugAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    return list(getattr(node, "names", ()))


def _spans(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return last is not None and first <= line <= last
