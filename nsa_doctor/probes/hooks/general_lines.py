"""Lines of an initialiser that are meant for whatever module they are handed, by the source."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from nsa_doctor.core.frames import Line
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.method_names import text_of, tree_of

_WALKS = frozenset({"modules", "named_modules", "children", "named_children", "parameters", "named_parameters"})
_ITSELF = ("self", "cls")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def is_for_any_module(line: Line) -> bool:
    """Whether what it writes to is `module.weight` of an argument or of a loop over modules, or `p` over parameters."""
    around = _around(line)
    functions = [each for each in around if isinstance(each, _Function)]
    if not functions:
        return False
    general = _arguments(functions[-1]) | _walked(functions[-1])
    return any(_reached(each) in general for each in _targets(around))


def is_for_one_by_name(calls: Sequence[Line]) -> bool:
    """Whether it writes to what a table of the function names, or to what its caller handed in by name: `self.gate`."""
    around = _around(calls[-1])
    functions = [each for each in around if isinstance(each, _Function)]
    targets = {_reached(each) for each in _targets(around)} if functions else set()
    loops = [each for each in around if isinstance(each, ast.For)]
    tables = [each for each in loops if targets & _names(each.target) and not _is_a_walk(each.iter)]
    if any(_is_of_itself(node) for each in tables for node in ast.walk(each.iter)):
        return True
    if len(calls) < 2 or not functions or not targets & _arguments(functions[-1]):
        return False
    handed = [each for node in _statement(_around(calls[-2])) for each in ast.walk(node) if isinstance(each, ast.Call)]
    handed = [each for each in handed if last_name(each.func) == calls[-1].function]
    return any(_is_of_itself(given) for each in handed for given in each.args)


def _around(line: Line) -> list[ast.AST]:
    """The nodes that hold the line, the outermost first."""
    tree = tree_of(text_of(Path(line.file)))
    return [each for each in ast.walk(tree) if _holds(each, line.line)] if tree is not None else []


def _statement(around: Sequence[ast.AST]) -> Sequence[ast.AST]:
    return [each for each in around if isinstance(each, (ast.Expr, ast.Assign, ast.AugAssign))][-1:]


def _targets(around: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """What the statement writes to: the first argument of `init.zeros_`, what `zero_` is called on, an index set."""
    for statement in _statement(around):
        if isinstance(statement, ast.Assign):
            yield from (each for each in statement.targets if isinstance(each, ast.Subscript))
        for call in (each for each in ast.walk(statement) if isinstance(each, ast.Call)):
            name = last_name(call.func)
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            is_of_it = name == "reset_parameters" or (name.endswith("_") and last_name(receiver or call) != "init")
            if receiver is not None and is_of_it:
                yield receiver
            elif name.endswith("_"):
                yield from call.args[:1]


def _holds(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0)


def _arguments(function: _Function) -> set[str]:
    arguments = (*function.args.posonlyargs, *function.args.args)
    return {each.arg for each in arguments if each.arg not in _ITSELF}


def _walked(function: ast.AST) -> set[str]:
    """The variables of its loops over modules or parameters."""
    loops = [each for each in ast.walk(function) if isinstance(each, (ast.For, ast.comprehension))]
    return {name for each in loops if _is_a_walk(each.iter) for name in _names(each.target)}


def _is_a_walk(iterated: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and last_name(each.func) in _WALKS for each in ast.walk(iterated))


def _names(target: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}


def _is_of_itself(node: ast.AST) -> bool:
    """Whether it is an attribute of the module, at any depth."""
    if not isinstance(node, ast.Attribute):
        return False
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _ITSELF


def _reached(node: ast.AST) -> str:
    """`module` of `module.weight`, `module.weight.data` or `module.bias[...]`, `p` of `p` and `p.data`."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.value
    if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
