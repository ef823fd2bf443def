"""Functions that write into what their callers gave, through what looks like a copy and is none, by their source."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from nsa_doctor.probes.hooks.alias_words import Alias, alias_of

_IN_PLACE = re.compile(r"[a-z0-9]_$")
_NO_VALUES = frozenset({"requires_grad_", "detach_", "share_memory_", "retain_grad_", "rename_", "t_", "unsqueeze_"})
_ON_PURPOSE = frozenset({
    *("cache", "caches", "state", "states", "out", "output", "outputs", "buffer", "buffers", "buf", "grad", "grads"),
    *("memory", "mem", "weight", "weights", "param", "params", "parameter", "parameters", "tensor", "past"),
    *("dst", "destination", "result", "results", "acc", "accum", "store", "bank", "queue", "table", "module", "bias"),
    *("kv", "dest", "average", "avg", "ema", "workspace", "scratch", "self", "cls", "ctx"),
})  # fmt: skip
_DESCRIBING = frozenset({"shape", "dtype", "device", "ndim", "size", "dim", "numel"})
_OF_BYTES = (255, 127.5)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)

Known = dict[str, Alias | None]


@dataclass(frozen=True)
class WrittenAlias:
    """An argument, the expression that looks like a copy of it, and the line that writes into it."""

    alias: Alias
    line: int


@dataclass(eq=False)
class _Seen:
    writes: list[WrittenAlias] = field(default_factory=list)
    returned: list[tuple[ast.expr, Known]] = field(default_factory=list)


def written_aliases(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[WrittenAlias]:
    """Each argument once; none where the function gives nothing back, or gives back what it was given."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    names = [each.arg for each in arguments if not set(re.findall(r"[a-z]+", each.arg.lower())) & _ON_PURPOSE]
    seen = _Seen()
    _follow(function.body, {name: Alias(name) for name in names}, seen)
    found = {each.alias.argument: each for each in reversed(seen.writes)}
    values = [value for value, _ in seen.returned if not (isinstance(value, ast.Constant) and value.value is None)]
    if not values or any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function)):
        return []
    relied_on = {alias.argument for value, known in seen.returned for alias in _as_given(value, known)}
    found = {name: each for name, each in found.items() if not (each.alias.is_cast and _is_of_whole(function, name))}
    return [each for each in found.values() if each.alias.argument not in relied_on]


def _is_of_whole(function: ast.FunctionDef | ast.AsyncFunctionDef, argument: str) -> bool:
    """Whether an argument is one of bytes or flags, which a cast to floats copies, by what is done with it."""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value in _OF_BYTES:
            return True
        used = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert) else None
        used = node.slice if isinstance(node, ast.Subscript) else used
        if isinstance(used, ast.Name) and used.id == argument:
            return True
    return False


def is_tensor_named(function: ast.FunctionDef | ast.AsyncFunctionDef, argument: str) -> bool:
    """Whether its annotation says a tensor or an array."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    annotation = next((each.annotation for each in arguments if each.arg == argument), None)
    return annotation is not None and re.search(r"Tensor|ndarray|Float\[|Int\[", ast.unparse(annotation)) is not None


def _as_given(value: ast.expr, known: Known) -> Iterator[Alias]:
    """The arguments that an expression reads as they are, for more than their shape."""
    described = {node.value for node in ast.walk(value) if isinstance(node, ast.Attribute) and node.attr in _DESCRIBING}
    for node in ast.walk(value):
        alias = known.get(node.id) if isinstance(node, ast.Name) and node not in described else None
        if alias is not None and alias.step is None:
            yield alias


def _follow(body: list[ast.stmt], known: Known, seen: _Seen) -> Known | None:
    """What is known behind these statements; None where they do not end."""
    for statement in body:
        if isinstance(statement, ast.If):
            _writes(statement.test, known, seen)
            one, other = _follow(statement.body, dict(known), seen), _follow(statement.orelse, dict(known), seen)
            known = _joined(one, other)  # type: ignore[assignment]
        elif isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            if not isinstance(statement, ast.While):
                _assign(statement.target, None, known)
            within = _follow(statement.body, dict(known), seen)
            known = _joined(within, known) or known
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            known = _follow(statement.body, known, seen)  # type: ignore[assignment]
        elif isinstance(statement, ast.Try):
            ends = [_follow(each.body, dict(known), seen) for each in statement.handlers]
            known = _follow([*statement.body, *statement.orelse], known, seen)  # type: ignore[assignment]
            for end in ends:
                known = _joined(known, end)  # type: ignore[assignment]
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            _simple(statement, known, seen)
        if known is None or isinstance(statement, _LEAVES):
            return None
    return known


def _joined(one: Known | None, other: Known | None) -> Known | None:
    """Aliases on both ways alone."""
    if one is None or other is None:
        return one if other is None else other
    return {name: one[name] if one[name] and other.get(name) else None for name in one}


def _simple(statement: ast.stmt, known: Known, seen: _Seen) -> None:
    _writes(statement, known, seen)
    if isinstance(statement, ast.Return) and statement.value is not None:
        seen.returned.append((statement.value, dict(known)))
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            _assign(target, statement.value, known)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        _assign(statement.target, statement.value, known)
    elif isinstance(statement, ast.Delete):
        for target in statement.targets:
            _assign(target, None, known)


def _assign(target: ast.expr, value: ast.expr | None, known: Known) -> None:
    if isinstance(target, ast.Name):
        alias = None if value is None else alias_of(value, known)
        if alias and isinstance(value, ast.Name) and alias.step is None and target.id != alias.argument:
            alias = replace(alias, step=value, text=f"{target.id} = {value.id}", why="is another name for it")
        known[target.id] = alias
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        shared = value if isinstance(value, ast.Call) else None
        for at, each in enumerate(target.elts):
            _assign(each, values[at] if len(values) == len(target.elts) else shared, known)


def _writes(statement: ast.AST, known: Known, seen: _Seen) -> None:
    for node in ast.walk(statement):
        target: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            target = node.target
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if _IN_PLACE.search(name) and name not in _NO_VALUES:
                target = node.func.value
        if target is not None:
            _note(target, node, known, seen)
        if isinstance(node, ast.Call):
            for each in node.keywords:
                if each.arg == "out":
                    _note(each.value, node, known, seen)


def _note(target: ast.expr, node: ast.AST, known: Known, seen: _Seen) -> None:
    """A write into a variable that shares values with an argument, and is none of its own names."""
    root = target
    while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    alias = known.get(root.id) if isinstance(root, ast.Name) else None
    if alias is not None and alias.step is not None and alias_of(target, known) is not None:
        seen.writes.append(WrittenAlias(alias, getattr(node, "lineno", 0)))
