"""Methods of the subject's own classes that choose rows of what an object holds, by an index that they are given."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place

_OWN = 3  # the rank of the subject's own code
_NAMES = re.compile(
    r"\w*(select|reorder|gather|pick|permute|choose|reindex|index|take|shuffle|keep_|filter_|beam|rows|subset)\w*"
    r"|__getitem__"
)
_INDICES = re.compile(
    r"(\w+_)?(rows?|idx|ids|index|indices|indexes|order|perm|permutation|parents?|beams?|keep|kept|sel|selection|which"
    r"|origins?|sources?|lanes?|slots?|ancestors?)"
)
_CLOSED = ("torch", "builtins", "abc", "typing", "enum", "collections", "numpy")
_BY_INDEX = ("index_select", "gather", "take", "take_along_dim", "index")
_SHARED = re.compile(
    r"\bshared?\b|\bsame (for|in|over|across)\b|common to|not (re)?order|not (chosen|selected|picked)"
    r"|(per|by|of each) slot|stays?\b|constant (over|across)|static|on purpose|does not depend on the row"
    r"|every (beam|row) (has|holds|sees)|\bmemo\b|scratch|(set|made) again|recomputed|overwritten",
    re.IGNORECASE,
)
_MOST_LINES = 80


@dataclass(frozen=True)
class Chooser:
    """A method by its name, its source as a tree whose lines are those of its file, and where it is."""

    name: str
    tree: ast.FunctionDef
    code: CodeType

    def place_of(self, name: str) -> Place:
        """The line that hands on the attribute of that name, or else that of the method."""
        lines = [node.lineno for node in ast.walk(self.tree) if isinstance(node, ast.Attribute) and node.attr == name]
        lines += [
            node.value.lineno for node in ast.walk(self.tree) if isinstance(node, ast.keyword) and node.arg == name
        ]
        return Place(
            file=self.code.co_filename, line=min(lines, default=self.tree.lineno), function=self.code.co_qualname
        )

    def names(self, name: str) -> bool:
        """Whether it speaks of that attribute."""
        return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(self.tree))


def choosers_of(kind: type, frames: FrameFilter) -> list[Chooser]:
    """Its own methods of one argument, an index by its name or its kind, that index something by it."""
    found = []
    own = [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in _CLOSED]
    methods = {name: value for each in reversed(own) for name, value in vars(each).items()}
    for name, method in methods.items():
        if not inspect.isfunction(method) or (name.startswith("__") and name != "__getitem__"):
            continue
        code = inspect.unwrap(method).__code__
        if code.co_argcount != 2 and not (code.co_argcount > 2 and _num_needed(method) == 2):
            continue
        given = code.co_varnames[1]
        is_meant = _NAMES.fullmatch(name) or _INDICES.fullmatch(given)
        if not is_meant or name == "forward" or frames.rank_of(code) != _OWN:
            continue
        tree = attempt(lambda m=method: _tree(m))
        if not isinstance(tree, ast.FunctionDef) or not _is_index(tree, given):
            continue
        if not issubclass(kind, nn.Module) or _is_kept(tree):
            found.append(Chooser(name, tree, code))
    return [each for each in found if not any(_is_a_part_of(each, other) for other in found if other is not each)]


def _is_a_part_of(chooser: Chooser, other: Chooser) -> bool:
    """Whether the other one calls it, of the same object, among other things that it chooses."""
    calls = [node.func for node in ast.walk(other.tree) if isinstance(node, ast.Call)]
    own = [call.attr for call in calls if isinstance(call, ast.Attribute) and _is_self(call.value, other.tree)]
    return chooser.name in own and len(own) > 1


def _is_self(node: ast.expr, tree: ast.FunctionDef) -> bool:
    return isinstance(node, ast.Name) and bool(tree.args.args) and node.id == tree.args.args[0].arg


def is_said_to_be_shared(kind: type, chooser: Chooser, name: str) -> bool:
    """Whether a comment beside the attribute says that it is the same for all rows, or one in the method does."""
    source: Any = attempt(lambda: inspect.getsource(kind))
    lines = source.splitlines() if isinstance(source, str) else []
    spoken = [line for line in lines if re.search(rf"\b{re.escape(name)}\b", line)]
    first = chooser.tree.lineno
    method: Any = attempt(lambda: inspect.getsourcelines(chooser.code)[0])
    said = [line for line in (method if isinstance(method, list) else []) if "#" in line or '"""' in line]
    return any(_SHARED.search(_beside(line)) for line in spoken) or (first > 0 and any(map(_SHARED.search, said)))


def _beside(line: str) -> str:
    """Its comment, or all of it where it is no code."""
    return line.partition("#")[2] if "#" in line else line if "=" not in line else ""


def set_by_callers(files: Iterable[Any], chooser: Chooser, name: str) -> bool:
    """Whether a function that calls the method sets, indexes or replaces that attribute itself."""
    for function in _functions(files):
        calls = [each for each in ast.walk(function) if isinstance(each, ast.Attribute) and each.attr == chooser.name]
        if not calls or function.name == chooser.name:
            continue
        for node in ast.walk(function):
            is_named = isinstance(node, ast.Attribute) and node.attr == name
            if is_named and isinstance(node.ctx, ast.Store):  # type: ignore[attr-defined]
                return True
            if isinstance(node, ast.keyword) and node.arg == name:
                return True
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == name:
                return True
    return False


def _functions(files: Iterable[Any]) -> Iterator[ast.FunctionDef]:
    for file in files:
        source: Any = attempt(lambda file=file: inspect.getsource(file))
        tree = attempt(lambda source=source: ast.parse(source)) if isinstance(source, str) else None
        if isinstance(tree, ast.Module):
            yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _num_needed(method: Any) -> int:
    signature = attempt(lambda: inspect.signature(method))
    if not isinstance(signature, inspect.Signature):
        return -1
    return sum(each.default is each.empty for each in signature.parameters.values())


def _tree(method: Any) -> ast.FunctionDef | None:
    lines, first = inspect.getsourcelines(method)
    if len(lines) > _MOST_LINES:
        return None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    return tree.body[0] if isinstance(tree.body[0], ast.FunctionDef) else None


def _is_index(tree: ast.FunctionDef, given: str) -> bool:
    """Whether something is indexed by that argument, or it is handed to what chooses in turn."""

    def is_given(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == given

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(map(is_given, parts)):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_choosing = node.func.attr in _BY_INDEX or _NAMES.fullmatch(node.func.attr) is not None
            if is_choosing and any(map(is_given, node.args)):
                return True
    return False


def _is_kept(tree: ast.FunctionDef) -> bool:
    """Whether it sets an attribute."""
    return any(isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) for node in ast.walk(tree))


def is_tensor_of(value: object, rows: int) -> bool:
    """Whether it is a tensor of so many rows."""
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows
