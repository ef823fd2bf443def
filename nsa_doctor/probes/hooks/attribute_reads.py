"""Whether any source reads an attribute of a module: its own methods, its class's project, texts beside them."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.method_names import asks_by_parts, files_around, files_of_kinds, text_of, tree_of
from nsa_doctor.probes.internal import MODULES

_OWN = 3  # the rank of the subject's own files
_ASKING = frozenset({"getattr", "hasattr", "setattr", "delattr", "attrgetter", "get_submodule", "set_submodule", "pop"})
_CHILDREN = frozenset({"children", "named_children", MODULES, "__dict__"})
_ALL_PARTS = frozenset({"modules", "named_modules"})  # of which a constructor sets the weights
_MAKING = re.compile(r"__init__|_*(init|reset|post_init)\w*|\w*_init_*|extra_repr")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)

_Node = tuple[ast.AST, ast.ClassDef | None, str]


def is_read_anywhere(holder: nn.Module, name: str, frames: FrameFilter, loaded: Collection[str] = ()) -> bool:
    """Whether something may read the attribute by its name, or goes through all parts; so it is where nobody can say.

    What another class reads of itself is an attribute of its own, and a function of torch's by that name is none.
    """
    known = files_of_kinds(type(holder))
    files = {file for file in known.values() if file is not None}
    if None in known.values() or not files or any(tree_of(text_of(file)) is None for file in files):
        return True
    kinds = frozenset(each.__name__ for each in known)
    own = {each: file for each, file in known.items() if file is not None and frames.rank(str(file)) == _OWN}
    if any(_is_read_in(file, name, kinds, is_own=True) or asks_by_parts(file, name) for file in files):
        return True
    around = (each for kind, file in own.items() for each in files_around(kind, file))
    return any(
        file is None or (file.resolve() not in files and _is_read_in(file, name, kinds, is_own=False))
        for file in (*dict.fromkeys(map(Path, loaded)), *dict.fromkeys(around))
    )


def _is_read_in(file: Path, name: str, kinds: frozenset[str], *, is_own: bool) -> bool:
    text = text_of(file)
    if name not in text and not is_own:
        return False
    if file.suffix != ".py":
        return not hasattr(Tensor, name) and re.search(rf"\.{re.escape(name)}\b", text) is not None
    tree = attempt(lambda: tree_of(text))
    if tree is None or isinstance(tree, Caught):
        return True
    imported, documented = set(_imported(tree)), set(_documentation(tree))
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    path = re.compile(rf"(.*\.)?{re.escape(name)}(\..*)?")
    for node, kind, method in _nodes(tree):
        names = set() if kind is None else {*map(last_name, kind.bases), *([kind.name] if is_own else [])}
        is_ours = not kinds.isdisjoint(names)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            is_self = _is_itself(node.value)
            if node.attr == name and (is_ours or kind is None if is_self else _is_of_a_module(node, imported, called)):
                return True
            if is_own and is_self and is_ours and _goes_through_all(node.attr, method):
                return True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            if is_own and path.fullmatch(node.value):
                return True
        elif isinstance(node, ast.Call):
            if is_own and is_ours and last_name(node.func) == "vars" and any(map(_is_itself, node.args)):
                return True
            words = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if last_name(node.func) in _ASKING and any(path.fullmatch(each) for each in words):
                return True
    return False


def _nodes(tree: ast.AST) -> Iterator[_Node]:
    """Every node, with the innermost class around it and that class's method."""
    waiting: list[_Node] = [(tree, None, "")]
    while waiting:
        node, kind, method = waiting.pop()
        if isinstance(node, ast.ClassDef):
            kind, method = node, ""
        elif isinstance(node, _FUNCTIONS):
            method = method or node.name
        yield node, kind, method
        waiting += [(child, kind, method) for child in ast.iter_child_nodes(node)]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)


def _documentation(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
            yield id(node.body[0].value)


def _is_itself(node: ast.AST) -> bool:
    return last_name(node) == "self" or (isinstance(node, ast.Call) and last_name(node.func) == "super")


def _is_of_a_module(node: ast.Attribute, imported: Collection[str], called: Collection[int]) -> bool:
    """Whether it may be an attribute of a module: not one of what was imported, nor a method of a tensor's."""
    root: ast.AST = node.value
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Name) and root.id in imported:
        return False
    return not (hasattr(Tensor, node.attr) and id(node) in called and not _is_itself(root))


def _goes_through_all(attribute: str, method: str) -> bool:
    return attribute in _CHILDREN or (attribute in _ALL_PARTS and not _MAKING.fullmatch(method))
