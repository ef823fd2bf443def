"""Loops over numbers that count the wrong way, which a run has come to and never gone through."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.attribute_lines import methods_of
from nsa_doctor.probes.hooks.reached_lines import traced_by

_AROUND = ("enumerate", "iter", "list", "reversed", "tqdm", "tuple")  # of a range, and of as many turns


@dataclass(eq=False)
class CountedLoop:
    """A loop `for … in range(n, 0)` or `range(0, n, -1)`: n has to be positive for it to count the wrong way.

    `numbers` is the range as it stands there, and `ends` what n was each time that the loop was come to.
    """

    place: Place
    numbers: str
    is_downward: bool
    end: CodeType
    body: range
    ends: list[Any] = field(default_factory=list)
    has_run: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it was come to, always with ends that are in the wrong order, and never gone through."""
        return bool(self.ends) and not self.has_run and all(type(end) is int and end > 0 for end in self.ends)


def counted_loops(module: nn.Module) -> Iterator[CountedLoop]:
    """The loops of that kind in methods of its classes.

    None whose computed end may be meant to be negative: one with a minus before it, or less a number that is not
    written out, for which a loop that fills up has turns at other times.
    """
    seen: set[type[nn.Module]] = set()
    for path, part in module.named_modules():
        if type(part) in seen:
            continue
        seen.add(type(part))
        for file, method in methods_of(part):
            for node in ast.walk(method):
                if not isinstance(node, ast.For) or node.body[0].lineno == node.lineno:
                    continue
                numbers = _range_of(node.iter)
                end = None if numbers is None else _wrong_way(numbers)
                if numbers is None or end is None:
                    continue
                place = Place(
                    module=path, module_class=type(part).__name__, file=file, line=node.lineno, function=method.name
                )
                code = compile(ast.Expression(body=end), file, "eval")
                body = range(node.body[0].lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1)
                yield CountedLoop(place, ast.unparse(numbers), end is numbers.args[1], code, body)


@contextmanager
def followed(loops: list[CountedLoop]) -> Iterator[None]:
    """Note which loops are come to and gone through, until the region ends."""
    by_file: dict[str, list[CountedLoop]] = {}
    for loop in loops:
        by_file.setdefault(loop.place.file, []).append(loop)

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        return follow if frame.f_code.co_filename in by_file else None

    def follow(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            for loop in by_file[frame.f_code.co_filename]:
                if frame.f_lineno == loop.place.line and frame.f_code.co_name == loop.place.function:
                    loop.ends.append(_value(loop.end, frame))
                loop.has_run |= frame.f_lineno in loop.body
        return follow

    with traced_by(called):
        yield


def _value(expression: CodeType, frame: FrameType) -> Any:
    value = attempt(lambda: eval(expression, frame.f_globals, frame.f_locals))  # noqa: S307 (it reads, and calls nothing)
    return None if isinstance(value, Caught) else value


def _range_of(numbers: ast.expr) -> ast.Call | None:
    """The range that a loop is over, within what gives as many turns."""
    if not isinstance(numbers, ast.Call) or not numbers.args:
        return None
    name = ast.unparse(numbers.func).rpartition(".")[2]
    return numbers if name == "range" else _range_of(numbers.args[0]) if name in _AROUND else None


def _wrong_way(numbers: ast.Call) -> ast.expr | None:
    """The one end of a range that is computed, where it counts upwards to 0 or less, or downwards from 0."""
    if not 2 <= len(numbers.args) <= 3 or numbers.keywords:
        return None
    first, end = numbers.args[:2]
    step = _literal(numbers.args[2]) if len(numbers.args) > 2 else 1
    start, stop = _literal(first), _literal(end)
    if step is None or (start is None) == (stop is None):
        return None
    computed = first if start is None else end
    if any(_may_be_negative(node) for node in ast.walk(computed)):
        return None
    is_wrong = (step > 0 and stop is not None and stop <= 0) or (step < 0 and start == 0)
    return computed if is_wrong else None


def _may_be_negative(node: ast.AST) -> bool:
    """Whether it is meant to be, or is a call, which is not made once more: of `len` alone."""
    is_less = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _literal(node.right) is None
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func) != "len"
    return is_less or is_call or isinstance(node, (ast.UnaryOp, ast.NamedExpr, ast.Await))


def _literal(node: ast.expr) -> int | None:
    """A whole number that is written out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _literal(node.operand)
        return None if number is None else -number
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
