"""Which variables of a package's functions hold one value: by what is handed in, what is returned, what is assigned."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from nsa_doctor.probes.numerics.spreads import Scope, spread_of


def linked(scopes: Sequence[Scope]) -> Mapping[str, str]:
    """For each slot of a variable the one that stands for all that hold its value."""
    by_name: dict[str, list[Scope]] = {}
    for scope in scopes:
        by_name.setdefault(scope.of.node.name, []).append(scope)
    single = {name: each[0] for name, each in by_name.items() if len(each) == 1}
    above: dict[str, str] = {}
    for scope in scopes:
        for one, other in chain(_pairs(scope, single), _logarithms(scope)):
            first, second = _root(above, one), _root(above, other)
            if first != second:
                above[first] = second
    return {slot: _root(above, slot) for slot in above}


def _root(above: Mapping[str, str], slot: str) -> str:
    while slot in above:
        slot = above[slot]
    return slot


def _pairs(scope: Scope, single: Mapping[str, Scope]) -> Iterator[tuple[str, str]]:
    for node in scope.of.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = _last(node.value.func)
            if name in single:
                for at, target in _numbered(node.targets[0]):
                    if slot := _slot(target, scope):
                        yield slot, f"return:{name}:{at}"
        if isinstance(node, ast.Return) and node.value is not None and scope.of.node.name in single:
            for at, value in _numbered(node.value):
                if slot := _slot(value, scope):
                    yield slot, f"return:{scope.of.node.name}:{at}"
        if isinstance(node, ast.Call) and (callee := single.get(_last(node.func))) is not None:
            yield from _handed(node, scope, callee)


def _logarithms(scope: Scope) -> Iterator[tuple[str, str]]:
    """Those of one name, which are one value wherever they stand in a file."""
    for node in scope.of.nodes:
        spread = spread_of(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if spread and spread.says.is_log:
            yield spread.slot, f"{scope.of.file}:{spread.name.rpartition('.')[2]}"


def _handed(call: ast.Call, scope: Scope, callee: Scope) -> Iterator[tuple[str, str]]:
    names = [each.arg for each in callee.of.parameters]
    if any(isinstance(each, ast.Starred) for each in call.args):
        return
    given = [
        *zip(names, call.args, strict=False),
        *((each.arg, each.value) for each in call.keywords if each.arg in names),
    ]
    for name, value in given:
        if slot := _slot(value, scope):
            yield slot, callee.slot(str(name))


def _slot(value: ast.expr, scope: Scope) -> str:
    """That of the variable which it is, as it is."""
    spread = spread_of(value, scope)
    return spread.slot if spread and spread.exponent == 1 and spread.is_log == spread.says.is_log else ""


def _numbered(node: ast.expr) -> Iterator[tuple[int, ast.expr]]:
    """The values of a tuple by their places; of another one -1."""
    if isinstance(node, ast.Tuple):
        yield from enumerate(node.elts)
    else:
        yield -1, node


def _last(callee: ast.expr) -> str:
    return callee.attr if isinstance(callee, ast.Attribute) else callee.id if isinstance(callee, ast.Name) else ""
