"""Names and attributes that a method calls, or takes a part of, on the side of a condition on which they are None."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.unread_variables import methods_used

_LAZY = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)  # run later, where it may be something else
_SCOPES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # with names of their own
_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.While, ast.For, ast.AsyncFor, ast.With, ast.Try, ast.Match)
_BINDING = (ast.Name, ast.Attribute)


@dataclass(frozen=True)
class UsedNone:
    """What is None there, what is done with it (`called`, `asked for .shape`, `indexed`), and where."""

    name: str
    use: str
    condition: str
    place: Place


def used_where_none(module: nn.Module) -> Iterator[UsedNone]:
    """Uses that raise wherever they are reached, in the methods of a module's parts, run or not.

    What may have been given another value before is left alone, and so is what stands in a `try`.
    """
    kinds = {type(part): part for part in module.modules() if not type(part).__module__.startswith("torch.")}
    found: dict[tuple[str, int], UsedNone] = {}
    for part in kinds.values():
        for file, method in methods_used(part):
            for node, name, use, test in _uses(method):
                place = Place(file=file, line=node.lineno, function=method.name, module_class=type(part).__name__)
                found.setdefault((file, node.lineno), UsedNone(name, use, ast.unparse(test), place))
    yield from found.values()


def _uses(method: ast.AST) -> Iterator[tuple[ast.expr, str, str, ast.expr]]:
    tried = {id(each) for node in ast.walk(method) if isinstance(node, ast.Try) for each in ast.walk(node)}
    for node in ast.walk(method):
        if not isinstance(node, (ast.If, ast.IfExp)) or id(node) in tried:
            continue
        for side, names in ((node.body, _none_where(node.test, True)), (node.orelse, _none_where(node.test, False))):
            parts: Sequence[ast.AST] = side if isinstance(side, list) else [side]
            for name in names:
                if (use := _first_use(parts, name)) is not None:
                    yield use[0], ast.unparse(name), use[1], node.test


def _none_where(test: ast.expr, holds: bool) -> list[ast.expr]:
    """Names and attributes of names that are None where a condition holds, or where it does not."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            return _none_where(inner, not holds)
        case ast.BoolOp(operator, values) if isinstance(operator, ast.And) is holds:
            return [name for value in values for name in _none_where(value, holds)]
        case ast.Compare(ast.Name() | ast.Attribute(ast.Name()) as name, [operator], [ast.Constant(value=None)]):
            is_none = {ast.Is: True, ast.Eq: True, ast.IsNot: False, ast.NotEq: False}.get(type(operator))
            return [name] if is_none is holds else []
    return []


def _first_use(parts: Sequence[ast.AST], name: ast.expr) -> tuple[ast.expr, str] | None:
    """The first use of it that raises, unless it is given a value before, or something that may give it one runs."""
    text = ast.unparse(name)
    for part in parts:
        nodes = list(_in_order(part))
        for node in nodes:
            use = _use(node, text)
            if use is not None:
                return (node, use) if isinstance(node, ast.expr) else None
            if _may_rebind(node, text, is_attribute=isinstance(name, ast.Attribute)):
                return None
    return None


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """A statement's parts as they are come to: values before what they are assigned to, functions before arguments."""
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, (*_LAZY, *_SCOPES, *_BRANCHES)):
        yield node
        return
    fields = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        value = node.value
        fields = [*([] if value is None else [value]), *(each for each in fields if each is not value)]
    yield node
    for each in fields:
        yield from _in_order(each)


def _use(node: ast.AST, text: str) -> str | None:
    match node:
        case ast.Call(func=func) if ast.unparse(func) == text:
            return "called"
        case ast.Attribute(value=value, attr=attribute, ctx=ast.Load()) if ast.unparse(value) == text:
            return None if attribute.startswith("__") else f"asked for .{attribute}"
        case ast.Subscript(value=value, ctx=ast.Load()) if ast.unparse(value) == text:
            return "indexed"
    return None


def _may_rebind(node: ast.AST, text: str, *, is_attribute: bool) -> bool:
    """Whether it is given a value there; an attribute may be by whatever is called."""
    if isinstance(node, (ast.Return, ast.Raise)) and not list(ast.iter_child_nodes(node)):
        return True
    if isinstance(node, (*_BRANCHES, *_SCOPES)):
        return True  # what is in them may not be come to, or is of another name
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == text
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((each.asname or each.name.partition(".")[0]) == text for each in node.names)
    if isinstance(node, _BINDING) and not isinstance(node.ctx, ast.Load) and ast.unparse(node) == text:
        return True
    return is_attribute and isinstance(node, ast.Call)
