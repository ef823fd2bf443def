"""Arguments that a method reads only where they are None: the condition stands the wrong way round."""

import ast
from collections.abc import Iterator, Sequence
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
    """Arguments that nothing assigns, read in branches for None alone, while the others give something."""
    arguments = {each.arg for each in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)}
    choices: dict[str, list[_Choice]] = {}
    for node in ast.walk(method):
        if isinstance(node, (ast.If, ast.IfExp)) and (name := _asked_for_none(node.test)) in arguments:
            choices.setdefault(name, []).append(node)
    for name, asked in choices.items():
        named = [node for node in ast.walk(method) if isinstance(node, ast.Name) and node.id == name]
        within = {id(node) for choice in asked for node in ast.walk(choice.test)}
        branches = [_branches(choice) for choice in asked]
        reads = [[node for node in named if _lies_in(node, for_none)] for for_none, _ in branches]
        within |= {id(node) for some in reads for node in some}
        wrong = [index for index, (_, other) in enumerate(branches) if reads[index] and _gives(other)]
        if wrong and all(isinstance(node.ctx, ast.Load) and id(node) in within for node in named):
            yield name, asked[wrong[0]], reads[wrong[0]][0].lineno


def _asked_for_none(test: ast.expr) -> str:
    """The variable that a condition compares with None; empty for any other condition."""
    match test:
        case ast.Compare(ast.Name(id=name), [ast.Is() | ast.IsNot()], [ast.Constant(value=None)]):
            return name
    return ""


def _branches(choice: _Choice) -> tuple[Sequence[ast.AST], Sequence[ast.AST]]:
    """What is done where it is None, and where it is not."""
    body = choice.body if isinstance(choice.body, list) else [choice.body]
    other = choice.orelse if isinstance(choice.orelse, list) else [choice.orelse]
    is_none_first = isinstance(choice.test, ast.Compare) and isinstance(choice.test.ops[0], ast.Is)
    return (body, other) if is_none_first else (other, body)


def _lies_in(node: ast.AST, branch: Sequence[ast.AST]) -> bool:
    return any(each is node for statement in branch for each in ast.walk(statement))


def _gives(branch: Sequence[ast.AST]) -> bool:
    """Whether it is an expression, or assigns or returns something; what raises does not."""
    nodes = [node for statement in branch for node in ast.walk(statement)]
    if any(isinstance(node, ast.Raise) for node in nodes):
        return False
    return any(isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)) for node in nodes) or any(
        isinstance(statement, ast.expr) for statement in branch
    )
