"""Lines that hand a value to the constructor of an object, in a field of which it is read elsewhere."""

import ast
import linecache
from collections.abc import Callable, Collection, Iterator
from types import FrameType

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import Line
from nsa_doctor.core.syntax import last_name

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def line_that_gives(
    frame: FrameType, is_meant: Callable[[object], bool], files: Callable[[], Collection[str]]
) -> Line | None:
    """Where an object was made of which the frame reads a field that is meant: the argument, by the field's name.

    It is looked for in the functions of these files; None where none of them, or several lines, give such an argument.
    """
    fields = {(kind.__name__, name) for kind, name in _fields(frame, is_meant)}
    found = {line for kind, name in fields for file in files() for line in _given(file, kind, name)}
    return found.pop() if len(found) == 1 else None


def _fields(frame: FrameType, is_meant: Callable[[object], bool]) -> Iterator[tuple[type, str]]:
    for value in list(frame.f_locals.values()):
        if isinstance(value, (nn.Module, Tensor, type)):
            continue
        for name in frame.f_code.co_names:
            held = attempt(lambda value=value, name=name: vars(value)[name])
            if not isinstance(held, Caught) and is_meant(held):
                yield type(value), name


def _given(file: str, kind: str, name: str) -> Iterator[Line]:
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(file))))
    nodes = ast.walk(tree) if isinstance(tree, ast.AST) else iter(())
    for function in [node for node in nodes if isinstance(node, _FUNCTIONS)]:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and last_name(node.func) == kind]
        given = [each for call in calls for each in call.keywords if each.arg == name]
        yield from (Line(file=file, line=each.value.lineno, function=function.name) for each in given)
