"""Arguments that a method hands on only where they are None, and has something else for where they are given."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.unread_variables import methods_used

_Choice = ast.If | ast.IfExp


@dataclass(frozen=True)
class NoneAlone:
    """An argument, the condition that asks whether it is None, and the first line that reads it where it is."""

    name: str
    kind: str
    place: Place
    read_at: int


def read_where_none(module: nn.Module) -> Iterator[NoneAlone]:
    """Of the methods of these modules, run or not."""
    kinds = {type(part): part for part in module.modules() if not type(part).__module__.startswith("torch.")}
    seen = set[tuple[str, int]]()
    for kind, part in kinds.items():
        for file, method in methods_used(part):
            for name, choice, read_at in _read_where_none(method):
                if (file, choice.lineno) not in seen:
                    seen.add((file, choice.lineno))
                    place = Place(module_class=kind.__name__, file=file, line=choice.lineno, function=method.name)
                    yield NoneAlone(name, kind.__name__, place, read_at)


def _read_where_none(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, _Choice, int]]:
    """Arguments of which all that is read is None, into what has another value where one is given."""
    arguments = {each.arg for each in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)}
    choices: dict[str, list[_Choice]] = {}
    for node in ast.walk(method):
        if isinstance(node, (ast.If, ast.IfExp)) and (name := _asked_for_none(node.test)) in arguments:
            choices.setdefault(name, []).append(node)
    for name, asked in choices.items():
        handed = [(choice, read) for choice in asked if (read := _handed_on(choice, name)) is not None]
        known = {id(node) for _, node in handed} | {id(node) for each in asked for node in ast.walk(each.test)}
        named = [node for node in ast.walk(method) if isinstance(node, ast.Name) and node.id == name]
        if handed and all(isinstance(node.ctx, ast.Load) and id(node) in known for node in named):
            yield name, handed[0][0], handed[0][1].lineno


def _asked_for_none(test: ast.expr) -> str:
    """The variable that a condition compares with None; empty for any other condition."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            return _asked_for_none(inner)
        case ast.Compare(
            ast.Name(id=name), [ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq()], [ast.Constant(value=None)]
        ):
            return name
    return ""


def _is_none_first(test: ast.expr) -> bool:
    """Whether the condition holds where it is None."""
    if isinstance(test, ast.UnaryOp):
        return not _is_none_first(test.operand)
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.Eq)


def _handed_on(choice: _Choice, name: str) -> ast.Name | None:
    """Where the branch for None gives the argument to something, and the other gives the same thing another value.

    A branch that says so, as by a warning, leaves it out on purpose.
    """
    if isinstance(choice, ast.IfExp):
        given, other = (choice.body, choice.orelse) if _is_none_first(choice.test) else (choice.orelse, choice.body)
        return given if isinstance(given, ast.Name) and given.id == name and not _is_plain(other) else None
    for_none, others = (choice.body, choice.orelse) if _is_none_first(choice.test) else (choice.orelse, choice.body)
    if any(isinstance(each, (ast.Expr, ast.Raise)) for each in others):
        return None
    targets = {ast.dump(target) for each in others if isinstance(each, ast.Assign) for target in each.targets}
    for each in for_none:
        if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Name) or each.value.id != name:
            continue
        if any(ast.dump(target) in targets for target in each.targets):
            return each.value
    return None


def _is_plain(node: ast.expr) -> bool:
    """Whether it is another variable, which may well be what was asked for."""
    return isinstance(node, (ast.Name, ast.Attribute))
