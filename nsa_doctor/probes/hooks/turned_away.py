"""The conditions in the subject's own code that last had a tensor in a variable, where it goes no further."""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch import nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.probes.hooks.method_names import text_of, tree_of

_OWN = 3  # the rank of the subject's own code
_MOST_LINES = 200_000  # beyond these a function does something else than to look at parameters


class Conditions:
    """Follows some parameters, while `watching`, through variables of functions that are the subject's own.

    A variable that holds a module which has the parameter directly counts where no variable holds the parameter, unless
    that is the module `outer`.
    """

    def __init__(self, frames: FrameFilter, parameters: Iterable[nn.Parameter], outer: nn.Module) -> None:
        self._frames = frames
        self._ids = {id(each) for each in parameters}
        self._outer = outer
        self._last: dict[int, Line] = {}
        self._by_module: dict[int, Line] = {}
        self._lines: dict[str, frozenset[int]] = {}
        self._ranks: dict[CodeType, int] = {}
        self._count = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow what is called in this region."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def last_of(self, parameter: nn.Parameter) -> Line | None:
        """The condition that had it last; None where none was seen."""
        return self._last.get(id(parameter)) or self._by_module.get(id(parameter))

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code not in self._ranks:
            self._ranks[code] = self._frames.rank_of(code)
        return self._ran if self._ranks[code] == _OWN and self._count < _MOST_LINES else None

    def _ran(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self._count += 1
            attempt(lambda: self._note(frame))  # what a tracer raises would come out of the subject
        return self._ran

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        if frame.f_lineno not in self._conditions(code.co_filename):
            return
        line = Line(file=code.co_filename, line=frame.f_lineno, function=_named(code))
        for value in frame.f_locals.values():
            if isinstance(value, nn.Parameter):
                if id(value) in self._ids:
                    self._last[id(value)] = line
            elif isinstance(value, nn.Module) and value is not self._outer:
                self._by_module |= {id(each): line for each in value.parameters(recurse=False)}

    def _conditions(self, file: str) -> frozenset[int]:
        if file not in self._lines:
            tree = tree_of(text_of(Path(file)))
            self._lines[file] = frozenset(_conditions_in(tree)) if tree is not None else frozenset()
        return self._lines[file]


def _conditions_in(tree: ast.AST) -> Iterator[int]:
    """Lines on which something is decided: of a branch, of a comprehension, in a function without a name."""
    for node in ast.walk(tree):
        tests: list[ast.expr] = []
        if isinstance(node, (ast.If, ast.IfExp)):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        elif isinstance(node, ast.Lambda):
            tests = [node.body]
        for each in tests:
            yield from range(each.lineno, (each.end_lineno or each.lineno) + 1)


def _named(code: CodeType) -> str:
    """The function's name; that of the one around where it has none of its own."""
    names = [each for each in code.co_qualname.split(".") if not each.startswith("<")]
    return names[-1] if names and inspect.iscode(code) else code.co_name
