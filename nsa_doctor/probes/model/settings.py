"""What a subject can be set to: variables of its environment, and options of the classes that it is made of."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest.mock import patch

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.model.identity import loaded_files
from nsa_doctor.probes.model.read_once import evaluate_defaults_again, forget_environment
from nsa_doctor.probes.model.setting_texts import documented_words, held_words

_SWITCH = ("0", "1")
_MOST_VALUES = 4
_NOTHING = ast.Module([], [])
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
# Words by which a name says that it chooses how something is computed, and not what.
_HOW = re.compile(
    r"(?:^|_)(?:impl(?:ementation)?|backend|(?:use|custom|cuda|fused)_kernels?|fused|flash|triton|sdpa|fast|tiled"
    r"|vectori[sz]ed?|batched|compiled?|checkpoint(?:ing)?|recompute|efficient|absorb(?:ed)?|eager|reference|debug"
    r"|verify|profiled?|inplace|cached?|chunked_(?:prefill|decode))"
    r"(?:_(?:path|mode|attn|attention|prefill|decode|impl|rope))?$",
    re.IGNORECASE,
)

# Values that do.
_HOW_VALUE = re.compile(
    r"sdpa|(?:flash|flex|paged|efficient|mem(?:ory)?_efficient)(?:_?attn|_?attention)?_?\d?|triton|eager|naive|reference|fused"
    r"|vectori[sz]ed|xformers|cudnn|compiled?",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A variable of the environment (`owner` None) or an option of a class, and a value that it may have."""

    name: str
    value: Any
    owner: type | None = None
    place: Place = field(default_factory=Place, compare=False)

    @property
    def label(self) -> str:
        """What it is called: `NSA_IMPL`, `Config.impl`."""
        return self.name if self.owner is None else f"{self.owner.__name__}.{self.name}"

    @property
    def says_how(self) -> bool:
        """Whether by its name or value it chooses how something is computed, so that the result has to be the same."""
        names_it = isinstance(self.value, str) and _HOW_VALUE.fullmatch(self.value) is not None
        return names_it or _HOW.search(self.name) is not None

    def __str__(self) -> str:
        return f"{self.label}={self.value}"

    def applied(self) -> AbstractContextManager[Any]:
        """Have it hold for what is built and called in this region."""
        if self.owner is None:
            return patch.dict("os.environ", {self.name: str(self.value)})
        return self._constructed()

    def import_again(self, packages: Sequence[str]) -> None:
        """Have what sources of these packages have read of it once be read again; for a copy of the process.

        On import, as the default of an argument, or by a function that keeps what it answers.
        """
        if self.owner is None:
            with self.applied():
                forget_environment(packages)
                for module, statement in _statements(packages, self.name):
                    _execute_again(module, statement, packages)
                for module, file in loaded_files(packages).items():
                    evaluate_defaults_again(module, _tree(file), lambda node: self.name in _names_asked_for(node))

    def _constructed(self) -> AbstractContextManager[Any]:
        assert self.owner is not None
        original = self.owner.__init__
        signature = inspect.signature(original)

        def init(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.arguments[self.name] = self.value
            ordered = {name: bound.arguments[name] for name in signature.parameters if name in bound.arguments}
            bound.arguments = ordered
            original(*bound.args, **bound.kwargs)

        return patch.object(self.owner, "__init__", init)


def variables_named(packages: Sequence[str]) -> dict[str, Place]:
    """Which variables the loaded sources of these packages name where they ask for one, each with its line."""
    found: dict[str, Place] = {}
    for file in sorted(loaded_files(packages).values()):
        for name, line in _variables_of(file).items():
            if name not in found:
                holder = getattr(_around(_tree(file) or _NOTHING, line), "name", "<module>")
                found[name] = Place(file=file, line=line, function=holder)
    return found


def name_line(node: ast.AST) -> int:
    """The line a node stands on."""
    return int(getattr(node, "lineno", 0))


def _statements(packages: Sequence[str], name: str) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    """Assignments outside of functions and classes that ask for a variable, each with its module."""
    for module, file in sorted(loaded_files(packages).items()):
        tree = _tree(file)
        for node in () if tree is None else tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _names_asked_for(node):
                yield module, node


def _names_asked_for(node: ast.AST) -> set[str]:
    return {name for each in ast.walk(node) for name in _asked_for(each)}


def _execute_again(name: str, statement: ast.Assign | ast.AnnAssign, packages: Sequence[str]) -> None:
    """Make an assignment of a module once more, and hand what changes to those that imported it by its name."""
    names = vars(sys.modules[name])
    before = dict(names)
    exec(compile(ast.Module([statement], []), "<again>", "exec"), names)  # noqa: S102 (the subject's own line)
    changed = {key: names[key] for key in _targets(statement) if key in before and names[key] is not before[key]}
    for other, file in loaded_files(packages).items():
        for key, value in changed.items():
            if _imports(_tree(file), key) and vars(sys.modules[other]).get(key) is before[key]:
                setattr(sys.modules[other], key, value)


def _imports(tree: ast.Module | None, name: str) -> bool:
    """Whether a source imports something by that name."""
    imports = [node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.ImportFrom)]
    return any(name in (each.asname, each.name) for node in imports for each in node.names)


def _targets(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    listed = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    yield from (node.id for each in listed for node in ast.walk(each) if isinstance(node, ast.Name))


def values_of(name: str, place: Place) -> list[str]:
    """Values a variable may plausibly have: a switch's, the words it is compared with where it is read, and documented.

    Words that a name of the module holds count as if they stood there.
    """
    tree = _tree(place.file)
    around = None if tree is None else _around(tree, place.line)
    held = {} if around is None else held_words(around, place.file)
    words = [] if around is None else [*_compared(ast.walk(around)), *held, *documented_words(name, place.file)]
    return [*_SWITCH, *list(dict.fromkeys(word for word in words if word not in _SWITCH))[:_MOST_VALUES]]


def options_of(module: nn.Module, packages: Sequence[str]) -> Iterator[Setting]:
    """Every switch and word that a class of the subject's is constructed with, with another value than it has."""
    seen: set[tuple[type, str]] = set()
    for each in _instances(module, packages):
        parameters = attempt(lambda each=each: inspect.signature(type(each).__init__).parameters)
        for name in () if isinstance(parameters, Caught) else parameters:
            value = attempt(lambda each=each, name=name: getattr(each, name))
            if (type(each), name) in seen or type(value) not in (bool, str):
                continue
            seen.add((type(each), name))
            setting = Setting(name=name, value=value, owner=type(each), place=_declared(type(each), name))
            yield from (replace(setting, value=other) for other in _others(type(each), name, value))


def _instances(module: nn.Module, packages: Sequence[str]) -> Iterator[object]:
    """The modules of the subject's own classes, and what they hold that is of such a class."""
    for child in module.modules():
        for each in (child, *vars(child).values()):
            if type(each).__module__.partition(".")[0] in packages and not isinstance(each, type):
                yield each


def _others(owner: type, name: str, value: object) -> Sequence[object]:
    if isinstance(value, bool):
        return [not value]
    hints = attempt(lambda: get_type_hints(owner))
    hint = None if isinstance(hints, Caught) else hints.get(name)
    words = [each for each in get_args(hint) if isinstance(each, str)] if get_origin(hint) is Literal else []
    if not words:
        files = loaded_files((owner.__module__.partition(".")[0],)).values()
        words = [word for file in files for word in _compared(_comparisons(file), name)]
    return list(dict.fromkeys(word for word in words if word != value))[:_MOST_VALUES]


def _compared(nodes: Iterable[ast.AST], name: str | None = None) -> Iterator[str]:
    """Words that something, or what has this name, is compared with in these."""
    for node in nodes:
        if isinstance(node, ast.Compare) and (name is None or last_name(node.left) == name):
            yield from _words(node.comparators)
        elif isinstance(node, ast.Match) and (name is None or last_name(node.subject) == name):
            yield from _words([case.pattern for case in node.cases])


def _words(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for outer in nodes:
        for node in ast.walk(outer):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _asked_for(node: ast.AST) -> Iterator[str]:
    """Words that are given to a call or looked up in something, and look like a variable."""
    given = node.args if isinstance(node, ast.Call) else [node.slice] if isinstance(node, ast.Subscript) else []
    for each in given:
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and _VARIABLE.fullmatch(each.value):
            yield each.value


def _around(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function that holds a line; the module's statement where none does."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds) and _holds(node, line)]
    if functions:
        return max(functions, key=lambda node: node.lineno)
    return next((node for node in tree.body if _holds(node, line)), tree)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _declared(owner: type, name: str) -> Place:
    """Where a class declares an option: its field, else its constructor's argument, else the class itself."""
    file = attempt(lambda: inspect.getsourcefile(owner))
    tree = _tree(file) if isinstance(file, str) else None
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__:
            annotated = [each for each in ast.walk(node) if isinstance(each, ast.AnnAssign)]
            fields = [each for each in annotated if last_name(each.target) == name]
            given = [each for each in ast.walk(node) if isinstance(each, ast.arg) and each.arg == name]
            name = owner.__name__
            return Place(module_class=name, file=str(file), line=name_line((*fields, *given, node)[0]), function=name)
    return Place(module_class=owner.__name__)


@cache
def _tree(file: str) -> ast.Module | None:
    tree = attempt(lambda: ast.parse(Path(file).read_text(encoding="utf-8")))
    return None if isinstance(tree, Caught) else tree


@cache
def _comparisons(file: str) -> tuple[ast.AST, ...]:
    """What compares something in a source."""
    return tuple(node for node in ast.walk(_tree(file) or _NOTHING) if isinstance(node, ast.Compare | ast.Match))


@cache
def _variables_of(file: str) -> dict[str, int]:
    """What looks like a variable and is asked for in a source, each with the line of the first time."""
    found: dict[str, int] = {}
    for node in ast.walk(_tree(file) or _NOTHING):
        for name in _asked_for(node):
            found.setdefault(name, name_line(node))
    return found
