"""Whether sources name a method of a class anywhere but where it is defined: on disk, loaded or not."""

import ast
import inspect
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.syntax import last_name

_MOST_FILES, _MOST_FOLDERS = 4000, 4000
_MOST_TREES = 16
_HIGHEST = 3  # folders above a package in which its project may begin
_PROSE = (".ipynb", ".md", ".rst")
_PASSED_OVER = frozenset({"site-packages", "dist-packages", "node_modules", "venv", "__pycache__"})
_BELOW = sys.stdlib_module_names | {"torch"}
_ASKING = frozenset({"getattr", "hasattr", "attrgetter", "methodcaller"})
_BEGINNING = frozenset({"startswith", "endswith"})
_SHORTEST = 3  # letters of a part of a name
_OWN = 3  # the rank of the subject's own files
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_named_elsewhere(kind: type, name: str, frames: FrameFilter, loaded: Collection[str] = ()) -> bool:
    """Whether a file beside its class's, of a package that it is derived from or loaded names it, or hides whether.

    What another class asks of itself is a method of its own, if it defines one; definitions of one name that call each
    other name nothing, nor do words of `__all__`.
    """
    known = files_of_kinds(kind)
    own = {each: file for each, file in known.items() if file is not None and frames.rank(str(file)) == _OWN}
    if None in known.values():
        return True
    sought = _Sought(name, frozenset(each.__name__ for each in own))
    roots = {_folder(file, each.__module__, is_own=True) for each, file in own.items()}
    packages = {_folder(file, each.__module__, is_own=False) for each, file in known.items() if each not in own}
    if any(_is_named(file, sought) or asks_by_parts(file, name) for file in dict.fromkeys(own.values())):
        return True
    if any(_is_named(Path(file), sought) for file in loaded):
        return True
    return any(file is None or _is_named(file, sought) for root in roots for file in _files(root)) or any(
        file is None or name in text_of(file) for root in packages - {None} for file in _files(root)
    )


def files_of_kinds(kind: type) -> dict[type, Path | None]:
    """The file of the class and of every one that it is derived from, without those of torch and of Python."""
    return {each: _file(each) for each in kind.__mro__ if each.__module__.partition(".")[0] not in _BELOW}


def files_around(kind: type, file: Path) -> Iterator[Path | None]:
    """The sources and texts of the project that a class's file is of, and None where they are too many to read."""
    return _files(_folder(file, kind.__module__, is_own=True))


def _file(kind: type) -> Path | None:
    file = attempt(lambda: inspect.getsourcefile(kind))
    return Path(file).resolve() if isinstance(file, str) and Path(file).is_file() else None


def _folder(file: Path | None, module: str, *, is_own: bool) -> Path:
    """The folder that holds all of its top-level package, or of an installed one that package."""
    assert file is not None
    depth = len(module.split(".")) - (file.name != "__init__.py")
    if not 1 <= depth <= len(file.parents):  # a file by itself
        return file if "-packages/" in str(file) or not is_own else file.parent
    package = file.parents[depth - 1]
    if not is_own or "-packages/" in str(file):
        return package
    return next((each for each in package.parents[:_HIGHEST] if _holds_a_project(each)), package.parent)


def _holds_a_project(folder: Path) -> bool:
    return any((folder / name).exists() for name in (".git", "pyproject.toml", "setup.py", "setup.cfg"))


def _files(root: Path) -> Iterator[Path | None]:
    """The sources and texts under a folder, and None where there are more of them than can be read."""
    if root.is_file():
        yield root
        return
    count = 0
    for number, (folder, inner, names) in enumerate(os.walk(root)):
        inner[:] = sorted(each for each in inner if not each.startswith(".") and each not in _PASSED_OVER)
        found = [Path(folder, each) for each in sorted(names) if each.endswith((".py", *_PROSE))]
        yield from found
        count += len(found)
        if number > _MOST_FOLDERS or count > _MOST_FILES:
            yield None
            return


def text_of(file: Path) -> str:
    """What it holds; nothing where it cannot be read."""
    text = attempt(lambda: file.read_text(encoding="utf-8", errors="replace"))
    return "" if isinstance(text, Caught) else text


@lru_cache(maxsize=_MOST_TREES)
def tree_of(text: str) -> ast.Module | None:
    """A source as Python reads it; None where it does not."""
    tree = attempt(lambda: ast.parse(text))
    return None if isinstance(tree, Caught) else tree


@dataclass(frozen=True)
class _Sought:
    """The method's name, and the names of the subject's own classes that an object which has it is of."""

    name: str
    kinds: frozenset[str]


def _is_named(file: Path, sought: _Sought) -> bool:
    text = text_of(file)
    if sought.name not in text:
        return False
    calls_it = re.compile(rf"\.{re.escape(sought.name)}\b")
    if file.suffix in _PROSE:
        return calls_it.search(text) is not None
    tree = tree_of(text)
    if tree is None:
        return True
    return any(_names_it(node, classes, depth, sought, calls_it) for node, classes, depth in _nodes(tree, sought.name))


def _nodes(tree: ast.AST, name: str) -> Iterator[tuple[ast.AST, tuple[ast.ClassDef, ...], int]]:
    """Every node outside of definitions of that name, with the classes around it and how many functions of theirs."""
    waiting: list[tuple[ast.AST, tuple[ast.ClassDef, ...], int]] = [(tree, (), 0)]
    while waiting:
        node, classes, depth = waiting.pop()
        if isinstance(node, _FUNCTIONS):
            if node.name == name:
                continue
            depth += 1
        elif isinstance(node, ast.ClassDef):
            classes, depth = (*classes, node), 0
        elif isinstance(node, ast.Assign) and any(last_name(each) == "__all__" for each in node.targets):
            continue
        yield node, classes, depth
        waiting += [(child, classes, depth) for child in ast.iter_child_nodes(node)]


def _names_it(
    node: ast.AST, classes: Sequence[ast.ClassDef], depth: int, sought: _Sought, calls_it: re.Pattern[str]
) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value == sought.name or calls_it.search(node.value) is not None
    if isinstance(node, ast.Name):
        return node.id == sought.name and bool(classes) and not depth  # in the body of a class
    if isinstance(node, ast.Attribute) and node.attr == sought.name:
        return not (_is_itself(node.value) and classes and _is_of_another(classes[-1], sought))
    return False


def _is_itself(node: ast.AST) -> bool:
    return last_name(node) == "self" or (isinstance(node, ast.Call) and last_name(node.func) == "super")


def _is_of_another(kind: ast.ClassDef, sought: _Sought) -> bool:
    """Whether a class defines a method of that name itself, and is none of those, nor derived from one."""
    names = {kind.name, *map(last_name, kind.bases)}
    defines = any(isinstance(each, _FUNCTIONS) and each.name == sought.name for each in kind.body)
    return defines and names.isdisjoint(sought.kinds)


def asks_by_parts(file: Path, name: str) -> bool:
    """Whether it asks for attributes by a name that it puts together of parts, one of which is part of this name."""
    calls = [node for node in ast.walk(tree_of(text_of(file)) or ast.Module([], [])) if isinstance(node, ast.Call)]
    return any(len(word) >= _SHORTEST and word in name for call in calls for word in _parts(call))


def _parts(call: ast.Call) -> Iterator[str]:
    """The words of which a call puts the name together that it asks for, or that it looks for in names."""
    asked = last_name(call.func)
    made = [each for each in call.args if isinstance(each, (ast.JoinedStr, ast.BinOp))] if asked in _ASKING else []
    looked_for = call.args[:1] if asked in _BEGINNING else []
    for node in (inner for each in (*made, *looked_for) for inner in ast.walk(each)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
