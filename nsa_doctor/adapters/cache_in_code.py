"""How the subject's own code makes the cache that it hands to its forward, read where it does and done again.

As its method `generate` does by `cache = TrunkCache([None] * self.n_layers)`, and then `self(x, cache=cache)`. Names in
such an expression stand for the module, for its input, for the number of rows, or for what the same function binds
them to once.
"""

import ast
import builtins
import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.adapters.decoding_starts import OF_INPUT, OF_LENGTH, OF_MODULE, OF_ROWS, ROOM, Start
from nsa_doctor.core.errors import attempt

_MODULES = (*OF_MODULE, "self")
_INPUTS = (*OF_INPUT, "prompt", "prompts", "input_ids", "idx", "start", "seq", "tokens", "frames", "context", "src")
_DEEPEST = 6
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_KINDS = (ast.Call, ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.BinOp, ast.Tuple)


def by_own_code(module: nn.Module, name: str, files: Sequence[ModuleType]) -> Iterator[tuple[str, Start]]:
    """(the expression, what evaluates it) of each cache that is handed to the module's forward by that name."""
    for function, holder in _functions(module, files):
        for made in _handed_over(module, function, name):
            yield ast.unparse(made), partial(_evaluated, made=made, function=function, held=holder)


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


def _evaluated(module: nn.Module, x: Tensor, made: ast.expr, function: _Function, held: dict[str, Any]) -> Any:
    """What such an expression gives for a module and its input; raises LookupError where a name stands for nothing."""
    code = compile(ast.fix_missing_locations(ast.Expression(made)), "<cache>", "eval")
    names = {**held, **_local(module, x, made, function, held, _DEEPEST)}
    return eval(code, names)  # noqa: S307 (the subject's own expression, which its own code runs)


def _local(
    module: nn.Module, x: Tensor, made: ast.expr, function: _Function, held: dict[str, Any], deepest: int
) -> dict[str, Any]:
    """What the names of the function that an expression reads stand for."""
    given = function.args
    arguments = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    reads = {each.id for each in ast.walk(made) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    reads -= {each.id for each in ast.walk(made) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    found: dict[str, Any] = {}
    for name in sorted(reads):
        bound = _bound(function, name)
        if name in arguments and name in _MODULES:
            found[name] = module
        elif (
            len(bound) == 1
            and deepest
            and name not in {each.id for each in ast.walk(bound[0]) if isinstance(each, ast.Name)}
        ):
            inner = _local(module, x, bound[0], function, held, deepest - 1)
            code = compile(ast.fix_missing_locations(ast.Expression(bound[0])), "<name>", "eval")
            found[name] = eval(code, {**held, **inner})  # noqa: S307
        elif name in arguments:
            found[name] = _argument(module, x, name, given)
        elif name not in held and not hasattr(builtins, name):
            raise LookupError(name)
    return found


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
