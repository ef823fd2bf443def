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
    """What is reached only where an argument is given: a side of a condition, or what follows a return without it."""
    arguments = {each.arg for each in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)}
    found = set[int]()
    for node in ast.walk(method):
        if isinstance(node, (ast.If, ast.IfExp)):
            side = _side_given(node.test, arguments)
            for each in () if side is None else _parts(node.body if side else node.orelse):
                found |= _below(each)
            if side is False and isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return):
                found |= _behind(method, node)
        elif isinstance(node, ast.BoolOp) and _side_given(node, arguments) is isinstance(node.op, ast.And):
            for each in node.values:
                found |= _below(each)
    return found


def _side_given(test: ast.expr, arguments: set[str]) -> bool | None:
    """On which side of a condition an argument is given: where it holds, or where it does not; None on neither."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            side = _side_given(inner, arguments)
            return None if side is None else not side
        case ast.Compare(ast.Name(id=name), [operator], [ast.Constant(value=None)]) if name in arguments:
            return {ast.Is: False, ast.Eq: False, ast.IsNot: True, ast.NotEq: True}.get(type(operator))
        case ast.BoolOp(operator, values):
            wanted = isinstance(operator, ast.And)  # all hold where it holds; none holds where an `or` does not
            return wanted if any(_side_given(value, arguments) is wanted for value in values) else None
    return None


def _parts(body: ast.expr | list[ast.stmt]) -> list[ast.expr] | list[ast.stmt]:
    return body if isinstance(body, list) else [body]


def _below(node: ast.AST) -> set[int]:
    return {id(each) for each in ast.walk(node)}


def _behind(method: _Method, node: ast.If) -> set[int]:
    return {id(each) for each in ast.walk(method) if _line(each) > (node.end_lineno or node.lineno)}


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
