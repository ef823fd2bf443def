"""The subject's own source files as trees, and the functions that they define, whether a pass calls them or not."""

import ast
import linecache
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.package import own_file
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.own_functions import modules_within_reach

_MOST_TEXT = 3_000_000  # characters
_DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)
_CHECKS = f"{own_file('checks')}/"

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class OwnDefinition:
    """A function by its definition: where it stands, the classes it is a method of, and what its names stand for."""

    node: Definition
    name: str
    file: str
    names: Mapping[str, Any] = field(repr=False)
    kind: ast.ClassDef | None = None
    within: "OwnDefinition | None" = None

    @property
    def is_method(self) -> bool:
        """Whether its first argument is the object that it is a method of."""
        first = next(iter((*self.node.args.posonlyargs, *self.node.args.args)), None)
        return self.kind is not None and first is not None and first.arg in ("self", "cls")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """What it holds, without the functions and classes that are defined in it."""
        return tuple(_walk(self.node))

    @property
    def parameters(self) -> list[ast.arg]:
        """Those that can be given by position or by name, the object itself apart."""
        given = self.node.args
        return [*given.posonlyargs, *given.args][self.is_method :] + given.kwonlyargs

    def place(self, line: int) -> Place:
        """A line of it."""
        return Place(file=self.file, line=line, function=self.node.name)


def own_definitions(sp: BuiltModule, words: re.Pattern[str], *, with_packages: bool = False) -> Iterator[OwnDefinition]:
    """Every function of the files within reach in whose text `words` are found, and of those that call one of these.

    Also of those that the packages around them import, if asked for.
    """
    texts: dict[str, str] = {}
    names: dict[str, Mapping[str, Any]] = {}
    for module in modules_within_reach(sp, FrameFilter(sp.subject.packages), with_packages=with_packages):
        file = str(module.__file__)
        texts[file], names[file] = "".join(linecache.getlines(file)), vars(module)
        if sum(map(len, texts.values())) > _MOST_TEXT:
            break
    found = [file for file, text in texts.items() if words.search(text)]
    defined = {name for file in found for name in _DEFINED.findall(texts[file])}
    if defined:
        calling = re.compile(rf"\b({'|'.join(sorted(defined))})\(")
        found += [file for file, text in texts.items() if file not in found and calling.search(text)]
    for file in found:
        yield from definitions_of(texts[file], file, names[file])


def definitions_of(text: str, file: str, names: Mapping[str, Any]) -> Iterator[OwnDefinition]:
    """Every function of a file; of a check's file those that it plants alone."""
    tree = _tree(text)
    for each in () if tree is None else _within(tree, "", file, names, None, None):
        if not file.startswith(_CHECKS) or "planted.<locals>" in each.name:
            yield each


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    waiting = deque(ast.iter_child_nodes(node))
    while waiting:
        each = waiting.popleft()
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield each
            waiting.extend(ast.iter_child_nodes(each))


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module | None:
    tree = attempt(lambda: ast.parse(text))
    return None if isinstance(tree, Caught) else tree


def _within(
    node: ast.AST,
    path: str,
    file: str,
    names: Mapping[str, Any],
    kind: ast.ClassDef | None,
    outer: OwnDefinition | None,
) -> Iterator[OwnDefinition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            each = OwnDefinition(child, f"{path}{child.name}", file, names, kind, outer)
            yield each
            yield from _within(child, f"{path}{child.name}.<locals>.", file, names, None, each)
        elif isinstance(child, ast.ClassDef):
            yield from _within(child, f"{path}{child.name}.", file, names, child, outer)
        else:
            yield from _within(child, path, file, names, kind, outer)
