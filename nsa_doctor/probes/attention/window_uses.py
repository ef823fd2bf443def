"""What a part's class does with the number of a window beside keeping it, where one pass has come or not."""

import ast
from collections.abc import Iterator

from torch import nn

from nsa_doctor.probes.hooks.attribute_lines import methods_of
from nsa_doctor.probes.hooks.reached_lines import Lines

_MAKING = ("__init__", "__post_init__")
_BRANCHES = (ast.If, ast.IfExp)

_Method = ast.FunctionDef | ast.AsyncFunctionDef


def has_another_use(holder: nn.Module, name: str, reached: Lines) -> bool:
    """Whether its class computes with the number while it is made, or reads it where other calls than a pass may come.

    That is a method that did not run, or a line of one that did which it has not come to, unless that is for the
    environment alone to say: a branch on names that are neither the method's nor of its module.
    """
    seen: set[str] = set()
    for file, method in methods_of(holder):
        if method.name in seen:
            continue
        seen.add(method.name)
        if method.name in _MAKING:
            if any(_is_computed_with(method, name)):
                return True
            continue
        lines = reached.get(file, set())
        has_run = any(node.lineno in lines for node in ast.walk(method) if isinstance(node, ast.stmt))
        for node, above in _reads(method, name):
            is_free = has_run and any(isinstance(each, _BRANCHES) and _is_global(each.test, method) for each in above)
            if node.lineno not in lines and not is_free:
                return True
    return False


def _is_computed_with(method: _Method, name: str) -> Iterator[bool]:
    for node in ast.walk(method):
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            yield any(
                (isinstance(each, ast.Name) and each.id == name) or _is_own(each, name)
                for each in ast.iter_child_nodes(node)
            )


def _reads(method: _Method, name: str) -> Iterator[tuple[ast.Attribute, list[ast.AST]]]:
    """Each read of the attribute, and what stands around it in the method."""
    waiting: list[tuple[ast.AST, list[ast.AST]]] = [(method, [])]
    while waiting:
        node, above = waiting.pop()
        if isinstance(node, ast.Attribute) and _is_own(node, name) and isinstance(node.ctx, ast.Load):
            yield node, above
        waiting += [(child, [*above, node]) for child in ast.iter_child_nodes(node)]


def _is_own(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _is_global(test: ast.expr, method: _Method) -> bool:
    """Whether a condition asks for nothing that belongs to a call: no variable, argument or attribute of `self`."""
    own = {each.arg for each in ast.walk(method.args) if isinstance(each, ast.arg)}
    own |= {each.id for each in ast.walk(method) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return not any(isinstance(each, ast.Name) and each.id in own for each in ast.walk(test))
