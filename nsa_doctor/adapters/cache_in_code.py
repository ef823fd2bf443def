"""How the subject's own code makes the cache that it hands to its forward, read where it does and done again.

As its method `generate` does by `cache = TrunkCache([None] * self.n_layers)`, and then `self(x, cache=cache)`. Names in
such an expression stand for the module, for its input, for the number of rows, or for what the same function binds
them to once. One that calls more than what makes values (`cache_calls`) is left alone.
"""

import ast
import builtins
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.adapters.cache_calls import only_makes
from nsa_doctor.adapters.decoding_starts import OF_INPUT, OF_LENGTH, OF_MODULE, OF_ROWS, ROOM, Start
from nsa_doctor.core.errors import attempt

_MODULES = (*OF_MODULE, "self")
_INPUTS = (*OF_INPUT, "prompt", "prompts", "input_ids", "idx", "start", "seq", "tokens", "frames", "context", "src")
_DEEPEST = 6
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_KINDS = (ast.Call, ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.BinOp, ast.Tuple)


def by_own_code(
    module: nn.Module, name: str, files: Sequence[ModuleType], packages: Sequence[str]
) -> Iterator[tuple[str, Start]]:
    """(the expression, what evaluates it) of each cache that is handed to the module's forward by that name."""
    for function, holder in _functions(module, files):
        for made in _handed_over(module, function, name):
            maker = _Maker(function, holder, tuple(packages))
            yield ast.unparse(made), partial(maker.cache, made=made)


def _functions(module: nn.Module, files: Sequence[ModuleType]) -> Iterator[tuple[_Function, dict[str, Any]]]:
    """Methods of the module's classes, and functions of those files, and what their global names are."""
    own = {kind.__qualname__ for kind in type(module).__mro__}
    for file in files:
        source: Any = attempt(lambda file=file: inspect.getsource(file))
        tree = attempt(lambda source=source: ast.parse(source)) if isinstance(source, str) else None
        if not isinstance(tree, ast.Module):
            continue
        held = vars(file)
        for node in tree.body:
            inner = node.body if isinstance(node, ast.ClassDef) and node.name in own else [node]
            yield from ((each, held) for each in inner if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _handed_over(module: nn.Module, function: _Function, name: str) -> Iterator[ast.expr]:
    """What makes it, of each call of the module, or of a method of it, that is given it."""
    for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
        names = _parameters(module, call.func)
        if name not in names:
            continue
        given = next((each.value for each in call.keywords if each.arg == name), None)
        position = names.index(name)
        if given is None and len(call.args) > position and not any(isinstance(x, ast.Starred) for x in call.args):
            given = call.args[position]
        if isinstance(given, ast.Name):
            given = next((value for value in _bound(function, given.id) if isinstance(value, _KINDS)), None)
        if isinstance(given, _KINDS):
            yield given


def _parameters(module: nn.Module, called: ast.expr) -> list[str]:
    """Of the module's forward where `self(...)` or `model(...)` is called, or of a method of it."""
    owner, name = (called.value, called.attr) if isinstance(called, ast.Attribute) else (called, "forward")
    if not (isinstance(owner, ast.Name) and owner.id in _MODULES):
        return []
    signature = attempt(lambda: inspect.signature(getattr(type(module), name)))
    return list(signature.parameters)[1:] if isinstance(signature, inspect.Signature) else []


def _bound(function: _Function, name: str) -> list[ast.expr]:
    """What a name of a function is bound to, in the order of its lines; `x if x is not None else y` is y."""
    found: list[ast.expr] = []
    for node in ast.walk(function):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        value = node.value
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id == name:
                found.append(value.orelse if isinstance(value, ast.IfExp) else value)
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Attribute) and value.attr == "shape":
                names = [each.id if isinstance(each, ast.Name) else "" for each in target.elts]
                if name in names:
                    found.append(ast.Subscript(value, ast.Constant(names.index(name)), ast.Load()))
    return found


@dataclass(frozen=True)
class _Maker:
    """A function of the subject's, and what the global names of its file stand for."""

    function: _Function
    held: dict[str, Any]
    packages: tuple[str, ...]

    def cache(self, module: nn.Module, x: Tensor, made: ast.expr) -> Any:
        """What such an expression gives for a module and its input.

        Raises LookupError where a name stands for nothing, or where it calls more than what makes values.
        """
        return self._value(module, x, made, _DEEPEST)

    def _value(self, module: nn.Module, x: Tensor, made: ast.expr, deepest: int) -> Any:
        names = {**self.held, **self._local(module, x, made, deepest)}
        if not only_makes(made, names, self.packages):
            raise LookupError(ast.unparse(made))
        code = compile(ast.fix_missing_locations(ast.Expression(made)), "<cache>", "eval")
        return eval(code, names)  # noqa: S307 (the subject's own expression, of calls that only make values)

    def _local(self, module: nn.Module, x: Tensor, made: ast.expr, deepest: int) -> dict[str, Any]:
        """What the names of the function that an expression reads stand for."""
        given = self.function.args
        arguments = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        reads = _read(made) - {each.id for each in _names(made) if isinstance(each.ctx, ast.Store)}
        found: dict[str, Any] = {}
        for name in sorted(reads):
            bound = _bound(self.function, name)
            if name in arguments and name in _MODULES:
                found[name] = module
            elif len(bound) == 1 and deepest and name not in _read(bound[0]):
                found[name] = self._value(module, x, bound[0], deepest - 1)
            elif name in arguments:
                found[name] = _argument(module, x, name, given)
            elif name not in self.held and not hasattr(builtins, name):
                raise LookupError(name)
        return found


def _names(expression: ast.expr) -> list[ast.Name]:
    return [each for each in ast.walk(expression) if isinstance(each, ast.Name)]


def _read(expression: ast.expr) -> set[str]:
    return {each.id for each in _names(expression) if isinstance(each.ctx, ast.Load)}


def _argument(module: nn.Module, x: Tensor, name: str, given: ast.arguments) -> Any:
    for names, value in ((OF_ROWS, len(x)), (OF_LENGTH, ROOM), (_INPUTS, x)):
        if name in names:
            return value
    if name in ("device", "dtype"):
        return getattr(next(module.parameters()), name)
    ordered = [*given.posonlyargs, *given.args]
    pairs = [*zip(ordered[::-1], given.defaults[::-1], strict=False)]
    pairs += [(each, default) for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default]
    values = [default.value for each, default in pairs if each.arg == name and isinstance(default, ast.Constant)]
    if len(values) != 1:
        raise LookupError(name)
    return values[0]
