"""Lines that hand a value to the constructor of an object, in a field of which it is read elsewhere."""

import ast
import linecache
from collections.abc import Callable, Iterator
from types import FrameType

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import Line

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST_FRAMES = 64


def line_that_gives(frame: FrameType, is_meant: Callable[[object], bool]) -> Line | None:
    """Where an object was made of which the frame reads a field that is meant: the argument, by the field's name.

    It is looked for in the functions that called the frame's, and those beside them in their files; None where none of
    them, or several, give such an argument.
    """
    fields = {(kind.__name__, name) for kind, name in _fields(frame, is_meant)}
    found = dict.fromkeys(line for kind, name in sorted(fields) for line in _given(frame, kind, name))
    return next(iter(found)) if len(found) == 1 else None


def _fields(frame: FrameType, is_meant: Callable[[object], bool]) -> Iterator[tuple[type, str]]:
    for value in list(frame.f_locals.values()):
        if isinstance(value, (nn.Module, Tensor, type)):
            continue
        for name in frame.f_code.co_names:
            held = attempt(lambda value=value, name=name: vars(value)[name])
            if not isinstance(held, Caught) and is_meant(held):
                yield type(value), name


def _given(frame: FrameType, kind: str, name: str) -> Iterator[Line]:
    for file in _files_of_callers(frame):
        tree = attempt(lambda file=file: ast.parse("".join(linecache.getlines(file))))
        functions = (
            [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)] if isinstance(tree, ast.AST) else []
        )
        for function in functions:
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _last(call.func) == kind:
                    lines = [each.value.lineno for each in call.keywords if each.arg == name]
                    yield from (Line(file=file, line=line, function=function.name) for line in lines)


def _files_of_callers(frame: FrameType) -> dict[str, None]:
    files: dict[str, None] = {}
    caller = frame.f_back
    for _ in range(_MOST_FRAMES):
        if caller is None:
            break
        files[caller.f_code.co_filename] = None
        caller = caller.f_back
    return files


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
