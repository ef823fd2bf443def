"""Attributes that a module reads only where a call gives it an argument that it may leave out."""

import ast

from torch import nn

from nsa_doctor.probes.hooks.unread_variables import methods_used

_Method = ast.FunctionDef | ast.AsyncFunctionDef


def is_read_where_given(holder: nn.Module, name: str) -> bool:
    """Whether a method reads it, and every read waits for an argument that is compared with None."""
    reads = [
        id(node) in waiting
        for _, method in methods_used(holder)
        if method.name != "__init__"
        for waiting in [_waiting(method)]
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
    ]
    return bool(reads) and all(reads)


def _waiting(method: _Method) -> set[int]:
    """What lies in a condition on an argument, on either side, or behind one that returns."""
    arguments = {each.arg for each in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)}
    found = set[int]()
    for node in ast.walk(method):
        if isinstance(node, (ast.If, ast.IfExp)) and _asks(node.test, arguments):
            found |= _below(node)
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return):
                found |= _behind(method, node)
        elif isinstance(node, ast.BoolOp) and any(_asks(value, arguments) for value in node.values):
            found |= _below(node)
    return found


def _asks(test: ast.expr, arguments: set[str]) -> bool:
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and node.left.id in arguments
        and any(isinstance(other, ast.Constant) and other.value is None for other in node.comparators)
        for node in ast.walk(test)
    )


def _below(node: ast.AST) -> set[int]:
    return {id(each) for each in ast.walk(node)}


def _behind(method: _Method, node: ast.If) -> set[int]:
    return {id(each) for each in ast.walk(method) if _line(each) > (node.end_lineno or node.lineno)}


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
