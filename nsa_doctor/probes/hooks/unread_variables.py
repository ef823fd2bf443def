"""Values that a function computes and never reads: at lines that a pass has come to, and of calls that tensors have."""

import ast
import linecache
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.attribute_lines import methods_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef)
_JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Try)
READING_ALL = ("locals", "vars", "eval", "exec")
_LONGEST = 60  # letters of an expression
# Of tensors alone, and each with a twin that writes in place: whatever it is called on, its value was wanted.
_OF_TENSORS = frozenset(
    {
        *("masked_fill", "masked_scatter", "index_fill", "index_copy", "index_add", "scatter_add", "scatter_reduce"),
        *("clamp_min", "clamp_max", "unsqueeze", "triu", "tril", "fill_diagonal", "rsqrt", "softmax", "nan_to_num"),
    }
)


# What gives a changed copy of what it is called on, value for value, or in another order: by torch's functions, whose
# names others' methods may have, and by methods of tensors alone. What a debugger looks at, as a softmax, is none.
_CHANGING_METHODS = _OF_TENSORS - {"unsqueeze", "fill_diagonal", "softmax", "rsqrt"}
_CHANGING = _CHANGING_METHODS | frozenset(
    {
        *("where", "index_put", "scatter", "roll", "flip", "clamp", "clip", "dropout", "normalize", "layer_norm"),
        *("rms_norm", "batch_norm", "group_norm"),
    }
)
_LIBRARIES = ("torch", "F", "nn.functional", "torch.nn.functional", "functional")


@dataclass(frozen=True)
class Unread:
    """A variable, or an expression whose value goes nowhere; `instead` says what was meant or is read in its place."""

    name: str
    place: Place
    instead: str = ""


def unread_at(lines: Iterable[tuple[Place, Collection[str], bool]]) -> Iterator[Unread]:
    """What each of these lines computes, by the nodes of autograd it made, where nothing in its function reads it.

    That is a variable assigned alone, or the value of an operation that stands by itself and has a twin which writes
    in place. What is taken apart into several is left alone, and so are a name that begins with an underscore and the
    value of what writes in place. The last of a line says whether its value has the shape of something it is made of.
    """
    trees: dict[str, ast.Module | Caught] = {}
    for place, nodes, is_as_large in lines:
        if place.file not in trees:
            trees[place.file] = attempt(lambda place=place: ast.parse("".join(linecache.getlines(place.file))))
        tree = trees[place.file]
        found = None if isinstance(tree, Caught) else _unread(tree, place, nodes, is_as_large)
        if found is not None:
            yield found


def dropped_in(module: nn.Module) -> Iterator[Unread]:
    """Values that methods of these modules drop, run or not: of calls of an operation of tensors alone, and changed
    copies of a variable with which the method goes on instead.

    What is called on an attribute may be anything, and what is tried by itself may be meant to raise.
    """
    kinds = {type(part): part for part in module.modules() if not type(part).__module__.startswith("torch.")}
    found: dict[tuple[str, int], Unread] = {}
    for part in kinds.values():
        for file, method in methods_used(part):
            for node, name, instead in (*_calls_dropped(method), *_copies_dropped(method)):
                place = Place(file=file, line=node.lineno, function=method.name)
                found[file, node.lineno] = Unread(name, place, instead)
    yield from found.values()


def methods_used(part: nn.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Its methods, but for those that a nearer class has in their place and does not call."""
    nearer: dict[str, bool] = {}
    for file, method in methods_of(part):
        if nearer.get(method.name, True):
            yield file, method
        names = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
        nearer[method.name] = nearer.get(method.name, True) and "super" in names


def _calls_dropped(method: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    tried = {id(node.body[0]) for node in ast.walk(method) if isinstance(node, ast.Try)}
    for node in ast.walk(method):
        call = node.value if isinstance(node, ast.Expr) and id(node) not in tried else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _is_of_tensor(call, call.func):
            yield call, _shortened(call), _in_place(call.func.attr)


def _copies_dropped(method: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    named = [node for node in ast.walk(method) if isinstance(node, ast.Name)]
    read = {node.id for node in named if not isinstance(node.ctx, ast.Store)}
    if read & set(READING_ALL):
        return
    shared = [node for node in ast.walk(method) if isinstance(node, (ast.Global, ast.Nonlocal, ast.AugAssign))]
    kept = read.union(*(_names_of(node) for node in shared))
    own = {node.arg for node in ast.walk(method) if isinstance(node, ast.arg)}
    own |= {node.id for node in named if isinstance(node.ctx, ast.Store)}
    scopes = [node for node in ast.walk(method) if isinstance(node, (ast.Try, ast.ClassDef))]  # tried, or no variables
    apart = {id(node) for scope in scopes for node in ast.walk(scope)}
    for node in ast.walk(method):
        target = _target(node)
        is_apart = target is None or target in kept or target.startswith("_") or id(node) in apart
        if is_apart or not isinstance(node, ast.stmt):
            continue
        of = [name for name in _changed_by(getattr(node, "value", None)) if name in own - {"self", "cls"}]
        last = node.end_lineno or node.lineno
        later = {name: [at for at in named if at.id == name and at.lineno > last] for name in of}
        first = next((min(reads, key=lambda at: at.lineno) for name in of if (reads := later[name])), None)
        if first is not None:
            yield node, str(target), f"line {first.lineno} reads {first.id} in its place"


def _changed_by(call: ast.expr | None) -> list[str]:
    """The variables of which a call gives a changed copy, what it is most likely meant to change first."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return []
    library, name = ast.unparse(call.func.value), call.func.attr
    is_of_torch = library in _LIBRARIES
    if name not in (_CHANGING if is_of_torch else _CHANGING_METHODS) or _is_written(call):
        return []
    given = [*call.args] if is_of_torch else [call.func.value, *call.args]
    of = given[2:0:-1] if name == "where" else given[:1]  # of two choices the second is what stays
    return [each.id for each in of if isinstance(each, ast.Name)]


def _is_written(call: ast.Call) -> bool:
    return bool({each.arg for each in call.keywords} & {"inplace", "out"})


def _is_of_tensor(call: ast.Call, function: ast.Attribute) -> bool:
    first = ast.unparse(function.value).split(".")[0]
    is_own = first not in ("self", "torch", "F", "nn", "np", "cls")
    return function.attr in _OF_TENSORS and is_own and not _is_written(call)


def _in_place(name: str) -> str:
    return f"its value is dropped: {name}_() writes in place, it does not"


def _unread(tree: ast.Module, place: Place, nodes: Collection[str], is_as_large: bool) -> Unread | None:
    line = place.line
    around = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and _spans(node, line)]
    if not around:
        return None
    outermost, innermost = (choose(around, key=lambda node: node.lineno) for choose in (min, max))
    named = [node for node in ast.walk(outermost) if isinstance(node, ast.Name)]
    read = {node.id for node in named if isinstance(node.ctx, ast.Load)}
    shared = [node for node in ast.walk(outermost) if isinstance(node, (ast.Global, ast.Nonlocal, ast.AugAssign))]
    touched = {name for node in shared for name in _names_of(node)}
    for node in ast.walk(innermost):
        if not _spans(node, line):
            continue
        if isinstance(node, ast.Expr) and (twin := _twin(node.value, nodes)):
            return Unread(_shortened(node.value), place, _in_place(twin))
        target = _target(node)
        if target is None or target.startswith("_") or _writes_in_place(node):
            continue
        if target in touched or read & set(READING_ALL):
            return None
        if target in read:
            other = _overwriting(outermost, innermost, node, target)
            first = replace(place, line=getattr(node, "lineno", place.line))  # of a statement of several lines
            return None if other is None else Unread(target, first, f"line {other} gives it another value")
        former = _forerunner(innermost, node, target) if is_as_large else ""
        return Unread(target, place, _namesake(innermost, node, target) or former)
    return None


def _twin(call: ast.expr, nodes: Collection[str]) -> str:
    """The operation that a call is of, where another by its name writes in place; empty for other expressions."""
    if not isinstance(call, ast.Call) or {each.arg for each in call.keywords} & {"inplace", "out"}:
        return ""
    given = [*call.args, *(each.value for each in call.keywords)]
    if any(isinstance(node, (ast.Call, ast.BinOp)) for each in given for node in ast.walk(each)):
        return ""  # the operation may be one of its arguments, and the call that of something that counts them
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).split(".")[0] == "self":
        return ""  # a method of its own, as `self.log`
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    backward = f"{name.replace('_', '')}backward"
    is_made = any(each.lower().startswith(backward) for each in nodes)
    return name if name and is_made and hasattr(torch.Tensor, f"{name}_") else ""


def _namesake(function: ast.AST, assigned: ast.AST, name: str) -> str:
    """Where the attribute of that name is read afterwards, of which the variable was made."""
    if name not in {node.attr for node in ast.walk(assigned) if isinstance(node, ast.Attribute)}:
        return ""
    last = getattr(assigned, "end_lineno", 0)
    called = {node.func for node in ast.walk(function) if isinstance(node, ast.Call)}
    later = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr == name
        if node.lineno > last and node not in called
    ]
    first = min(later, key=lambda node: node.lineno, default=None)
    return "" if first is None else f"line {first.lineno} reads {_shortened(first)} in its place"


def _writes_in_place(assigned: ast.AST) -> bool:
    """Whether the value is that of a call which writes into a tensor that others hold: `y.mul_(2)`, `exp(y, out=z)`."""
    call = getattr(assigned, "value", None)
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    is_named_so = name.endswith("_") and not name.endswith("__")
    return is_named_so or bool({each.arg for each in call.keywords} & {"inplace", "out"})


def _forerunner(function: ast.AST, assigned: ast.AST, name: str) -> str:
    """Where the variable is read afterwards of which this was made, and whose name it has with a word more."""
    words = name.split("_")
    used = {node.id for node in ast.walk(assigned) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    former = {other for other in used if set(other.split("_")) < set(words)}
    last = getattr(assigned, "end_lineno", 0)
    later = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > last and node.id in former
    ]
    first = min(later, key=lambda node: node.lineno, default=None)
    return "" if first is None else f"line {first.lineno} reads {first.id} in its place"


def _shortened(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _target(node: ast.AST) -> str | None:
    """The one plain name that an assignment gives its value to."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target = node.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _overwriting(outermost: ast.AST, function: ast.AST, assigned: ast.AST, name: str) -> int | None:
    """The line behind it, of the same block, that gives the variable another value before anything reads it.

    None where the block may be left between the two, by a jump or by what is tried, or where a function or a class
    within may read it whenever it is called.
    """
    within = (node for node in ast.walk(outermost) if isinstance(node, _SCOPES) and node is not outermost)
    if any(isinstance(node, ast.Name) and node.id == name for scope in within for node in ast.walk(scope)):
        return None
    holders = [(node, part) for node in ast.walk(function) for part in ("body", "orelse", "finalbody")]
    holders = [each for each in holders if not (isinstance(each[0], ast.Try) and each[1] == "body")]
    blocks = [getattr(node, part, None) for node, part in holders]
    block = next((each for each in blocks if isinstance(each, list) and assigned in each), [])
    for following in block[block.index(assigned) + 1 :] if block else ():
        nodes = list(ast.walk(following))
        named = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
        if any(not isinstance(node.ctx, ast.Store) for node in named) or any(
            isinstance(node, _JUMPS) for node in nodes
        ):
            return None
        if isinstance(following, (ast.Assign, ast.AnnAssign)) and following.value is not None and named:
            return following.lineno
    return None


def _names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.AugAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    return list(getattr(node, "names", ()))


def _spans(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return last is not None and first <= line <= last
