"""Whether any source reads an attribute of a module: its own methods, its class's project, texts beside them."""

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.method_names import asks_by_parts, files_around, files_of_kinds, text_of, tree_of
from nsa_doctor.probes.internal import MODULES

_OWN = 3  # the rank of the subject's own files
_ASKING = frozenset({"getattr", "hasattr", "setattr", "delattr", "attrgetter", "get_submodule", "set_submodule", "pop"})
_READING = frozenset({"getattr", "attrgetter", "get_submodule"})
_MOST_SOURCES = 256
_CHILDREN = frozenset({"children", "named_children", MODULES, "__dict__"})
_ALL_PARTS = frozenset({"modules", "named_modules"})  # of which a constructor sets the weights
_MAKING = re.compile(r"__init__|_*(init|reset|post_init)\w*|\w*_init_*|extra_repr")
_DESCRIBING = re.compile(
    r"extra_repr|__(repr|str|getstate|reduce|reduce_ex)__|_?(get|to|as)_(config|dict|json|yaml)\w*|config_dict|state_dict"
    r"|_?(save|summary|describe)\w*"
)
_OF_KEYS = frozenset({"get", "setdefault"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)

_Node = tuple[ast.AST, ast.ClassDef | None, str]


def is_read_anywhere(
    holder: nn.Module, name: str, frames: FrameFilter, loaded: Collection[str] = (), *, is_for_use: bool = False
) -> bool:
    """Whether something may read the attribute by its name, or goes through all parts; so it is where nobody can say.

    What another class reads of itself, and makes, is an attribute of its own, and a function of torch's by that name is
    none. Where it `is_for_use`, what prints the module or saves its configuration does not count, and neither do keys.
    """
    known = files_of_kinds(type(holder))
    files = {file for file in known.values() if file is not None}
    if None in known.values() or not files or any(tree_of(text_of(file)) is None for file in files):
        return True
    if any("__getattr__" in vars(each) for each in known):
        return True
    kinds = frozenset(each.__name__ for each in known)
    own = {each: file for each, file in known.items() if file is not None and frames.rank(str(file)) == _OWN}
    if any(_is_read_in_own(file, name, kinds, is_for_use) or asks_by_parts(file, name) for file in files):
        return True
    around = (each for kind, file in own.items() for each in files_around(kind, file))
    return any(
        file is None or (file.resolve() not in files and _is_read_in(file, name, kinds, is_for_use))
        for file in (*dict.fromkeys(map(Path, loaded)), *dict.fromkeys(around))
    )


def _is_read_in_own(file: Path, name: str, kinds: frozenset[str], is_for_use: bool) -> bool:
    """Of the file of a class it is of: strings, and whatever goes through all parts, count too."""
    reads = _reads_in(text_of(file), is_for_use)
    if reads is None or not kinds.isdisjoint(reads.going_through_all) or _is_read_in(file, name, kinds, is_for_use):
        return True
    return any(_is_path_of(each, name) for each in reads.words)


def _is_read_in(file: Path, name: str, kinds: frozenset[str], is_for_use: bool) -> bool:
    text = text_of(file)
    if name not in text or re.search(rf"\b{re.escape(name)}\b", text) is None:
        return False
    if file.suffix != ".py":
        return not hasattr(Tensor, name) and re.search(rf"\.{re.escape(name)}\b", text) is not None
    reads = _reads_in(text, is_for_use)
    if reads is None or name in reads.of_others:
        return True
    if any(kind is None or kind in kinds or not is_made for kind, is_made in reads.of_itself.get(name, ())):
        return True
    return any(_is_path_of(each, name) for each in reads.asked)


def _is_path_of(words: str, name: str) -> bool:
    return name in words.split(".")


@dataclass
class _Reads:
    """What a source reads: of others, of itself in which class and whether that makes it, and by which words."""

    of_others: set[str] = field(default_factory=set)
    of_itself: dict[str, set[tuple[str | None, bool]]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    going_through_all: set[str] = field(default_factory=set)


@lru_cache(maxsize=_MOST_SOURCES)
def _reads_in(text: str, is_for_use: bool) -> _Reads | None:
    """What a source reads, in one look at it, or reads to use it; None where Python cannot say."""
    tree = attempt(lambda: ast.parse(text))
    if isinstance(tree, Caught):
        return None
    imported, documented = set(_imported(tree)), set(_documentation(tree))
    nodes, reads = list(_nodes(tree)), _Reads()
    if is_for_use:
        documented |= set(_keys(tree))
        nodes = [each for each in nodes if each[1] is None or not _DESCRIBING.fullmatch(each[2])]
    called = {id(node.func) for node, _, _ in nodes if isinstance(node, ast.Call)}
    made = {
        (id(kind), node.attr) for node, kind, _ in nodes if isinstance(node, ast.Attribute) and _is_stored_in_self(node)
    }
    for node, kind, method in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if _is_itself(node.value):
                is_made = (id(kind), node.attr) in made
                reads.of_itself.setdefault(node.attr, set()).add((kind.name if kind else None, is_made))
                if kind is not None and _goes_through_all(node.attr, method):
                    reads.going_through_all |= {kind.name, *map(last_name, kind.bases)}
            elif _is_of_a_module(node, imported, called):
                reads.of_others.add(node.attr)
        elif isinstance(node, ast.MatchClass):
            reads.of_others.update(node.kwd_attrs)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            reads.words.add(node.value)
        elif isinstance(node, ast.Call):
            _look_at_call(reads, node, kind)
    return reads


def _look_at_call(reads: _Reads, node: ast.Call, kind: ast.ClassDef | None) -> None:
    asking = last_name(node.func)
    if asking in _ASKING:
        reads.asked |= {
            each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
        }
    is_of_all = asking == "vars" and any(map(_is_itself, node.args))
    of_any = [each for each in node.args if asking in _READING and not isinstance(each, ast.Constant)]
    is_of_self = any(
        map(_is_itself, (*node.args[:1], *([node.func.value] if isinstance(node.func, ast.Attribute) else [])))
    )
    if kind is not None and (is_of_all or (is_of_self and any(not _is_itself(each) for each in of_any))):
        reads.going_through_all |= {kind.name, *map(last_name, kind.bases)}


def _is_stored_in_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and last_name(node.value) == "self"


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


def _keys(tree: ast.AST) -> Iterator[int]:
    """Constants that something is looked up by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            yield id(node.slice)
        elif isinstance(node, ast.Dict):
            yield from (id(each) for each in node.keys if each is not None)
        elif isinstance(node, ast.Call) and last_name(node.func) in _OF_KEYS and node.args:
            yield id(node.args[0])


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
