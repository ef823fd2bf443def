"""Lines that put one part into a list several times: a list that is multiplied, a loop that adds what was made before.

A part stands several times in a container that a build made; the build is made once more, and the lines under way
where the container is filled are read: the innermost whose statement, or a local name in it, multiplies.
"""

import ast
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType, FrameType

from torch import nn

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import part_at
from nsa_doctor.subject.contract import Subject

_OWN = 3  # the rank of the subject's own code
_DEEPEST = 3  # names that stand for others
_KINDS = (nn.ModuleList, nn.Sequential, nn.ParameterList)
_METHODS = ("__init__", "__iadd__", "append", "extend", "insert", "add_module", "register_module")
_FILLING: frozenset[CodeType] = frozenset(
    code for kind in _KINDS for name in _METHODS if (code := getattr(getattr(kind, name, None), "__code__", None))
)
_ADDING = {"append": 0, "appendleft": 0, "insert": 1, "add_module": 1, "register_module": 1}  # which argument it adds
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Multiplied:
    """The line that puts one part into a list several times.

    `is_list` where a list is multiplied, which says nothing of parts that are each their own; `is_kept` where the part
    is an attribute as well, `is_held` where it has a name of its own, `is_chosen` where another branch there builds
    each layer; `names` are those that it has there; `around` are the lines under way, from the one that fills the
    container to this one, and the conditions and loops that they are in.
    """

    line: Line
    is_list: bool
    is_kept: bool
    is_held: bool
    is_chosen: bool
    names: frozenset[str]
    around: tuple[Line, ...]


def multiplied_part(subject: Subject, path: str, kind: str) -> Multiplied | None:
    """Where a build of the subject multiplies the part of class `kind` that stands in the container at that path."""
    frames = FrameFilter(subject.packages)
    with unobserved(), _fillings(frames) as found:
        root = attempt(lambda: subject.build(subject.seed))
        container = attempt(lambda: part_at(root, path)) if isinstance(root, nn.Module) else None
    stacks = found.get(id(container), ()) if isinstance(container, nn.Module) else ()
    for stack in stacks:
        for depth, line in enumerate(stack):
            seen = _multiplication(line.file, line.line, kind)
            if seen is not None:
                node, part = seen
                place = replace(line, line=getattr(node, "lineno", line.line))
                is_list = isinstance(node, (ast.BinOp, ast.Call)) and not _added(node)
                under_way = (*stack[: depth + 1], place)
                around = (*under_way, *(head for each in under_way for head in _heads(each)))
                is_kept, is_held = isinstance(part, ast.Attribute), isinstance(part, ast.Name)
                is_chosen = _is_chosen(line) or _is_chosen(place)
                return Multiplied(place, is_list, is_kept, is_held, is_chosen, _names(part), around)
    return None


def is_handed_in(made: Line) -> bool:
    """Whether the statement on the line that makes a container is given all that it reads by the caller's arguments."""
    tree = _tree(made.file)
    around = [node for node in ast.walk(tree) if _covers(node, made.line)] if tree is not None else []
    function = next((node for node in reversed(around) if isinstance(node, _FUNCTIONS)), None)
    statement = next((node for node in reversed(around) if isinstance(node, (ast.Assign, ast.AnnAssign))), None)
    if function is None or statement is None or statement.value is None:
        return False
    value = statement.value
    given = (
        [each.value if isinstance(each, ast.Starred) else each for each in value.args]
        if isinstance(value, ast.Call)
        else [value]
    )
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)} - {"self"}
    return bool(given) and all(isinstance(each, ast.Name) and each.id in arguments for each in given)


@contextmanager
def _fillings(frames: FrameFilter) -> Iterator[dict[int, list[tuple[Line, ...]]]]:
    """By a container's number, the subject's own lines under way whenever it is filled, innermost first."""
    found: dict[int, list[tuple[Line, ...]]] = {}
    alive: list[object] = []  # or another container would get its number

    def look(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code not in _FILLING:
            return
        holder = frame.f_locals[frame.f_code.co_varnames[0]]
        stack = tuple(_lines(frame.f_back, frames))
        stacks = found.setdefault(id(holder), [])
        if stack and stack not in stacks:
            stacks.append(stack)
            alive.append(holder)

    with calls_seen_by(look):
        yield found
        del alive[:]


def _lines(frame: FrameType | None, frames: FrameFilter) -> Iterator[Line]:
    while frame is not None:
        code = frame.f_code
        if frames.rank_of(code) == _OWN:
            yield Line(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
        frame = frame.f_back


@lru_cache
def _tree(file: str) -> ast.Module | None:
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(file))))
    return None if isinstance(tree, Caught) else tree


def _heads(line: Line) -> Iterator[Line]:
    """The first lines of the conditions and loops that a line is in."""
    tree = _tree(line.file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.If, *_LOOPS)) and _covers(node, line.line):
            yield replace(line, line=node.lineno)


def _is_chosen(line: Line) -> bool:
    """Whether a condition around a line has another branch, which fills the same list or returns, one by one."""
    tree = _tree(line.file)
    for own, other in _branches(tree) if tree is not None else ():
        mine = {text for text, each in _fills(own) if _covers(each, line.line)}
        if any(text in mine and _is_one_by_one(each, other) for text, each in _fills(other)):
            return True
    return False


def _branches(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], list[ast.stmt]]]:
    """Statements of which a condition takes either these or those, both ways round."""
    for around in ast.walk(tree):
        for name in ("body", "orelse"):
            block = getattr(around, name, None)
            for at, each in enumerate(block if isinstance(block, list) else ()):
                if isinstance(each, ast.If):
                    after = block[at + 1 :] if isinstance(each.body[-1], ast.Return) else []  # type: ignore[index]
                    other = each.orelse or after
                    yield from ((each.body, other), (other, each.body))


def _fills(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """What these statements assign, add to or return, and by which statement."""
    for each in (inner for statement in statements for inner in ast.walk(statement)):
        match each:
            case ast.Assign(targets=targets):
                yield from ((ast.unparse(target), each) for target in targets)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                yield ast.unparse(target), each
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=held))):
                yield ast.unparse(held), each
            case ast.Return():
                yield "return", each


def _is_one_by_one(statement: ast.stmt, branch: list[ast.stmt]) -> bool:
    """Whether it makes a new one each time, in a comprehension, or in a loop of its branch."""
    loops = [each for top in branch for each in ast.walk(top) if isinstance(each, _LOOPS)]
    if any(inner is statement for loop in loops for inner in ast.walk(loop)):
        return True
    made = [each.elt for each in ast.walk(statement) if isinstance(each, (ast.ListComp, ast.GeneratorExp))]
    return any(isinstance(inner, ast.Call) for each in made for inner in ast.walk(each))


def _multiplication(file: str, line: int, kind: str) -> tuple[ast.AST, ast.expr] | None:
    """What in that statement, or in what its local names stand for, multiplies a part of that class; and the part."""
    tree = _tree(file)
    around = [node for node in ast.walk(tree) if _covers(node, line)] if tree is not None else []
    statement = next((node for node in reversed(around) if isinstance(node, ast.stmt)), None)
    if statement is None:
        return None
    function = next((node for node in reversed(around) if isinstance(node, _FUNCTIONS)), tree)
    assert function is not None
    for each in _meant_by(statement, function):
        for node in ast.walk(each):
            for part in _several(node, function):
                made = _made_as(part, function)
                if made in ("", kind):
                    return node, part
    return None


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _meant_by(statement: ast.stmt, function: ast.AST) -> Iterator[ast.AST]:
    """The statement, and those that assign or fill the names that it reads, and so on."""
    first: ast.AST = statement
    if isinstance(statement, (*_LOOPS, ast.If, ast.With)):  # its first line alone is under way
        first = getattr(statement, "iter", None) or getattr(statement, "test", None) or ast.Pass()
    seen, new = [first], [first]
    for _ in range(_DEEPEST):
        names = {node.id for each in new for node in ast.walk(each) if isinstance(node, ast.Name)}
        new = [node for node in ast.walk(function) if _sets(node, names) and node not in seen]
        seen += new
    yield from seen


def _sets(node: ast.AST, names: set[str]) -> bool:
    """Whether it assigns one of these local names, or adds to it."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(each, ast.Name) and each.id in names for each in targets)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        held = node.value.func.value
        return isinstance(held, ast.Name) and held.id in names
    return False


def _several(node: ast.AST, function: ast.AST) -> list[ast.expr]:
    """The parts that this expression puts into a list several times."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=ast.List(elts=parts) | ast.Tuple(elts=parts)):
            return [each for each in parts if not isinstance(each, ast.Constant)]
        case ast.BinOp(op=ast.Mult(), right=ast.List(elts=parts) | ast.Tuple(elts=parts)):
            return [each for each in parts if not isinstance(each, ast.Constant)]
        case ast.ListComp() | ast.GeneratorExp():
            parts = node.elt.elts if isinstance(node.elt, ast.Tuple) else [node.elt]
            return [each for each in parts if _is_from_before(each, node)]
        case ast.Call() if last_name(node.func) == "repeat" and len(node.args) + len(node.keywords) == 2:
            return node.args[:1]
        case ast.Call() | ast.AugAssign() if added := _added(node):
            loops = [each for each in ast.walk(function) if isinstance(each, _LOOPS) and node in ast.walk(each)]
            return [each for each in added if loops and _is_from_before(each, loops[-1])]
    return []


def _added(node: ast.AST) -> list[ast.expr]:
    """What a call of `append` or its like, or `+=` of a list, adds."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=arguments):
            return arguments[_ADDING[name] :][:1] if name in _ADDING else []
        case ast.AugAssign(op=ast.Add(), value=ast.List(elts=parts)):
            return parts
    return []


def _is_from_before(part: ast.expr, around: ast.AST) -> bool:
    """Whether it is a name, or an attribute of one, that a loop or a comprehension does not set."""
    first: ast.expr = part
    while isinstance(first, ast.Attribute):
        first = first.value
    if not isinstance(first, ast.Name):
        return False
    stored = [node for node in ast.walk(around) if isinstance(getattr(node, "ctx", None), ast.Store)]
    names = {node.id for node in stored if isinstance(node, ast.Name)}
    return first.id not in names and ast.dump(part) not in {ast.dump(_loaded(node)) for node in stored}


def _loaded(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.Attribute):
        return ast.Attribute(value=node.value, attr=node.attr, ctx=ast.Load())
    return node


def _made_as(part: ast.expr, function: ast.AST) -> str:
    """The class that the part is made of as far as the function says it; empty where it does not."""
    if isinstance(part, ast.Name):
        values = [each.value for each in ast.walk(function) if isinstance(each, ast.Assign) and _sets(each, {part.id})]
        part = values[0] if len(values) == 1 else part
    name = last_name(part.func) if isinstance(part, ast.Call) else ""
    return name if name[:1].isupper() else ""


def _names(part: ast.expr) -> frozenset[str]:
    """What the part is called: itself, or what makes it."""
    name = last_name(part.func if isinstance(part, ast.Call) else part)
    return frozenset({name} - {""})
