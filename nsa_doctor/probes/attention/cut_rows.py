"""The line that keeps too few of the newest rows of a cache: with one or two more of them decoding does not depart."""

import ast
import linecache
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name

_MOST_LINES, _MOST_MORE = 6, 2

_At = tuple[str, int]


def cut_short(sp: BuiltModule, run: Callable[[], object], is_right: Callable[[], bool]) -> Place | None:
    """The line whose slices leave out rows that decoding misses; `run` decodes, and `is_right` says how that ends."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watcher = _Slices(places)
    with torch.no_grad(), watcher:
        run()
    for at, place in list(watcher.found.items())[:_MOST_LINES]:
        for more in range(1, _MOST_MORE + 1):
            if attempt(lambda at=at, more=more: _holds(places, at, more, is_right)) is True:
                return replace(place, line=_line_of_number(*at) or place.line)
    return None


def _holds(places: Places, at: _At, more: int, is_right: Callable[[], bool]) -> bool:
    with torch.no_grad(), _Slices(places, at, more):
        return is_right()


class _Slices(DispatchWatcher):
    """Sees slices that leave out first rows, by their lines; those of one line leave out fewer by `more`."""

    def __init__(self, places: Places, at: _At | None = None, more: int = 0) -> None:
        super().__init__()
        self.found: dict[_At, Place] = {}
        self._places, self._at, self._more = places, at, more

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation, a slice with other numbers where it is on that line."""
        if operation_name(func) != "slice" or len(args) < 3 or kwargs:
            return func(*args, **kwargs)
        held, dim, start, *rest = args
        if not (isinstance(held, Tensor) and held.is_floating_point() and isinstance(start, int)):
            return func(*args)
        size, end = held.shape[dim], rest[0] if rest else None
        start = start + size if start < 0 else start
        if not 0 < start < size or (end is not None and end < size) or (len(rest) > 1 and rest[1] != 1):
            return func(*args)
        place = self._places.of_frame(frame_above(1))
        if place is not None and place.line is not None:
            at = place.file, place.line
            self.found.setdefault(at, place)
            if at == self._at:
                start = max(0, start - self._more)
        return func(held, dim, start, *rest)


def _line_of_number(file: str, line: int) -> int | None:
    """Where the function works out the number by which that line slices, if it has a name; None where it has none."""
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(file))))
    nodes = list(ast.walk(tree)) if isinstance(tree, ast.Module) else []
    around = [
        each for each in nodes if isinstance(each, ast.FunctionDef) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    if not around:
        return None
    function = max(around, key=lambda each: each.lineno)
    names = set(_numbers_of(function, line))
    found = [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and node.lineno < line
        and isinstance(node.value, (ast.Call, ast.BinOp, ast.IfExp))
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in names
    ]
    return max(found, default=None)


def _numbers_of(function: ast.FunctionDef, line: int) -> Iterator[str]:
    """Names that stand in the slices on that line, but for those of what is sliced."""
    slices = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    sliced = {each.id for node in slices for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    for node in slices:
        lower = [each.lower for each in ast.walk(node.slice) if isinstance(each, ast.Slice) and each.lower is not None]
        for name in (each for part in lower for each in ast.walk(part) if isinstance(each, ast.Name)):
            if name.id not in sliced:
                yield name.id
