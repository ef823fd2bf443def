"""Lines of an initialiser that are meant for whatever module they are handed, by the source."""

import ast
from pathlib import Path

from nsa_doctor.core.frames import Line
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.method_names import text_of, tree_of

_WALKS = frozenset({"modules", "named_modules", "children", "named_children", "parameters", "named_parameters"})
_ITSELF = ("self", "cls")


def is_for_any_module(line: Line) -> bool:
    """Whether what it writes to is `module.weight` of an argument or of a loop over modules, or `p` over parameters."""
    tree = tree_of(text_of(Path(line.file)))
    around = [each for each in ast.walk(tree) if _holds(each, line.line)] if tree is not None else []
    functions = [each for each in around if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    statements = [each for each in around if isinstance(each, (ast.Expr, ast.Assign, ast.AugAssign))]
    if not functions or not statements:
        return False
    general = _arguments(functions[-1]) | _walked(functions[-1])
    return any(_reached(each) in general for each in ast.walk(statements[-1]))


def _holds(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0)


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    arguments = (*function.args.posonlyargs, *function.args.args)
    return {each.arg for each in arguments if each.arg not in _ITSELF}


def _walked(function: ast.AST) -> set[str]:
    """The variables of its loops over modules or parameters."""
    loops = [each for each in ast.walk(function) if isinstance(each, (ast.For, ast.comprehension))]
    walks = [
        each
        for each in loops
        if any(isinstance(call, ast.Call) and last_name(call.func) in _WALKS for call in ast.walk(each.iter))
    ]
    return {name.id for each in walks for name in ast.walk(each.target) if isinstance(name, ast.Name)}


def _reached(node: ast.AST) -> str:
    """`module` of `module.weight`, `module.weight.data` or `module.bias[...]`, `p` of `p` and `p.data`."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.value
    if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
