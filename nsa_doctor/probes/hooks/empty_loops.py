"""Loops over numbers that count the wrong way, which a run has come to and never gone through."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.attribute_lines import methods_of
from nsa_doctor.probes.hooks.reached_lines import Lines


@dataclass(frozen=True)
class EmptyLoop:
    """A loop of a module's class: where it stands, what it is over, and which way that counts."""

    place: Place
    numbers: str
    is_downward: bool


def empty_loops(module: nn.Module, reached: Lines) -> Iterator[EmptyLoop]:
    """The loops of its classes' methods over `range(n, 0)` or `range(0, n, -1)`, whose lines were reached, not passed.

    Beside a start or an end that is written as a negative number either may be right.
    """
    seen: set[type[nn.Module]] = set()
    for path, part in module.named_modules():
        if type(part) in seen:
            continue
        seen.add(type(part))
        for file, method in methods_of(part):
            lines = reached.get(file, set())
            for node in ast.walk(method):
                if not isinstance(node, ast.For) or node.lineno not in lines or node.body[0].lineno in lines:
                    continue
                step = _wrong_way(node.iter)
                if step and node.body[0].lineno != node.lineno:
                    place = Place(
                        module=path, module_class=type(part).__name__, file=file, line=node.lineno, function=method.name
                    )
                    yield EmptyLoop(place, ast.unparse(node.iter), step < 0)


def _wrong_way(numbers: ast.expr) -> int:
    """The step of a range that counts upwards to 0 or less, or downwards from 0; 0 of another one."""
    if not isinstance(numbers, ast.Call) or ast.unparse(numbers.func) != "range" or len(numbers.args) < 2:
        return 0
    first, end = numbers.args[:2]
    step = _literal(numbers.args[2]) if len(numbers.args) > 2 else 1
    start, stop = _literal(first), _literal(end)
    computed = [each for each, number in ((first, start), (end, stop)) if number is None]
    if step is None or len(computed) != 1 or any(isinstance(node, ast.UnaryOp) for node in ast.walk(computed[0])):
        return 0
    is_upward = step > 0 and stop is not None and stop <= 0
    is_downward = step < 0 and start == 0
    return step if is_upward or is_downward else 0


def _literal(node: ast.expr) -> int | None:
    """A whole number that is written out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _literal(node.operand)
        return None if number is None else -number
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None
