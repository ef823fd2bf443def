"""What in a folder may be examined: modules, factories and attention functions, read from their source, never run."""

import ast
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from nsa_doctor.cli.function_signature import convention, spec_by_default
from nsa_doctor.core.syntax import annotated_name

_MOST_FILES, _MOST_BYTES, _DEEPEST = 2000, 1 << 20, 8
_PASSED_OVER = re.compile(
    r"(\..*|__pycache__|build|dist|node_modules|site-packages|v?env|tests?|test_.*|.*_test\.py|conftest\.py|setup\.py)"
)
_NAMES = {  # the larger, the likelier it is what a person wants examined
    4: re.compile(r"att(entio)?n|sdpa", re.IGNORECASE),
    3: re.compile(r"mixer|mamba|ssm|retention|linear_?rnn|decoder|transformer|llama|gpt", re.IGNORECASE),
    2: re.compile(r"model|layer|block|lm$", re.IGNORECASE),
}
_BODY = re.compile(r"softmax|scaled_dot_product_attention|flash_attn|flex_attention")
_MADE = {"Module": 0, "Adapter": 10, "Subject": 10}  # what a factory may return; the last two are made for nsa-doctor
FACTORY = "doctor_subject.py"
_FACTORY = '''\
"""What nsa-doctor examines: written by `nsa-doctor init`, to be changed as you like."""

from {module} import {names}


def make():
    return {call}
'''


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One thing that may be examined; `missing` are arguments it cannot be built without, `folder` where it is from.

    `made_with` are arguments that it needs too, each with a class of that module that needs none: a factory is written
    for it, in a file of its own. `like` and `spec` are guesses of how a function is called and what it computes.
    """

    module: str
    name: str
    place: str
    weight: int
    like: str | None = None
    spec: str | None = None
    missing: tuple[str, ...] = ()
    made_with: tuple[tuple[str, str], ...] = ()
    folder: str = "."
    words: str = ""

    @property
    def subject(self) -> str:
        """What `--subject` takes; `words`, where a person has given them."""
        if self.made_with:
            return f"{FACTORY.removesuffix('.py')}:make"
        return self.words or f"{'fn:' if self.like else ''}{self.module}:{self.name}"

    @property
    def factory(self) -> str:
        """The text of the file that makes it of its arguments."""
        names = ", ".join(sorted({self.name, *dict(self.made_with).values()}, key=lambda name: (name.lower(), name)))
        return _FACTORY.format(module=self.module, names=names, call=self.call)

    @property
    def call(self) -> str:
        """How it is made of its arguments."""
        return f"{self.name}({', '.join(f'{name}={kind}()' for name, kind in self.made_with)})"


@dataclass(frozen=True)
class _File:
    module: str
    folder: str
    place: str
    tree: ast.Module


def proposals(root: Path) -> list[Proposal]:
    """All that was found, what is most probably meant first; what cannot be built without arguments comes last."""
    files = list(_files(root))
    classes = {node.name: node for file in files for node in file.tree.body if isinstance(node, ast.ClassDef)}
    modules = {name for name in classes if _is_module(name, classes, 0)}
    found = [each for file in files for each in _in_file(file, modules, classes)]
    return sorted(found, key=lambda each: (bool(each.missing), -each.weight, each.place.count("/"), each.subject))


def _files(root: Path) -> Iterator[_File]:
    sources = root / "src"
    has_sources = sources.is_dir() and not (sources / "__init__.py").exists()
    for count, path in enumerate(_python_files(root, 0)):
        if count == _MOST_FILES:
            return
        folder = "src" if has_sources and path.is_relative_to(sources) else "."
        parts = path.relative_to(root / folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        tree = _tree(path)
        if tree is not None and parts and all(part.isidentifier() for part in parts):
            yield _File(".".join(parts), folder, str(path.relative_to(root)), tree)


def _python_files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name))
    except OSError:
        return
    if depth and any(entry.name == "pyvenv.cfg" for entry in entries):  # an environment, whatever it is called
        return
    for entry in entries:
        if _PASSED_OVER.fullmatch(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False) and depth < _DEEPEST:
            yield from _python_files(folder / entry.name, depth + 1)
        elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
            yield folder / entry.name


def _tree(path: Path) -> ast.Module | None:
    """The file's source as a tree; None for what is too large or no Python."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _in_file(file: _File, modules: set[str], classes: dict[str, ast.ClassDef]) -> Iterator[Proposal]:
    for node in file.tree.body:
        if isinstance(node, ast.ClassDef) and node.name in modules and not node.name.startswith("_"):
            if _method(node, "forward") is not None:
                constructor = _constructor(node, classes, 0)
                missing = _required(constructor, is_method=True)
                kinds = {name: _makes_itself(constructor, name, classes) for name in missing if constructor is not None}
                parts = " ".join(_parts(node, modules, classes))
                yield _proposed(file, node, made=parts, needs=kinds)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if (like := convention(node)) is not None:
                yield replace(_proposed(file, node, like=like), spec=spec_by_default(node))
            elif not _required(node, is_method=False) and (made := _made(node, modules)) is not None:
                yield _proposed(file, node, made=made)


def _proposed(
    file: _File,
    node: ast.ClassDef | ast.FunctionDef,
    *,
    made: str = "",
    like: str | None = None,
    needs: Mapping[str, str] = MappingProxyType({}),
) -> Proposal:
    """What may be examined there: `made` is what it returns or is made of, `needs` its arguments with their classes."""
    made_with = tuple(needs.items()) if all(needs.values()) else ()
    is_factory = isinstance(node, ast.FunctionDef) and bool(made)
    own = _named(f"{node.name} {made}" if is_factory else node.name)
    weight = max(own, 0 if is_factory else _named(made) - 1) + is_factory + _MADE.get(made, 0)
    weight += 2 * bool(_BODY.search(ast.unparse(node)))
    place = f"{file.place}:{node.lineno}"
    return Proposal(
        module=file.module,
        name=node.name,
        place=place,
        weight=weight,
        like=like,
        missing=() if made_with else tuple(needs),
        made_with=made_with,
        folder=file.folder,
    )


def _named(names: str) -> int:
    """How likely one of these names is what a person wants examined."""
    return max((weight for weight, pattern in _NAMES.items() if pattern.search(names)), default=0)


def _parts(node: ast.ClassDef, modules: set[str], classes: dict[str, ast.ClassDef]) -> list[str]:
    """The modules of the folder that a class is made of, and those that these are made of."""
    found, waiting = dict[str, None](), [node]
    while waiting:
        calls = (each for each in ast.walk(waiting.pop()) if isinstance(each, ast.Call))
        new = {name for name in map(annotated_name, (each.func for each in calls)) if name in modules} - {
            node.name,
            *found,
        }
        found |= dict.fromkeys(sorted(new))
        waiting += [classes[name] for name in new]
    return list(found)


def _is_module(name: str, classes: dict[str, ast.ClassDef], depth: int) -> bool:
    """Whether a class of the folder comes from nn.Module, as far as its bases are named so or are of the folder."""
    node = classes.get(name)
    bases = [annotated_name(base) for base in node.bases] if node is not None and depth < _DEEPEST else []
    return any(base.endswith(("Module", "PreTrainedModel")) or _is_module(base, classes, depth + 1) for base in bases)


def _constructor(node: ast.ClassDef, classes: dict[str, ast.ClassDef], depth: int) -> ast.FunctionDef | None:
    """Its __init__, or that of the first base of the folder which has one."""
    own = _method(node, "__init__")
    if own is not None or depth == _DEEPEST:
        return own
    bases = [classes[annotated_name(base)] for base in node.bases if annotated_name(base) in classes]
    return next((found for base in bases if (found := _constructor(base, classes, depth + 1))), None)


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name), None)


def _required(function: ast.FunctionDef | None, *, is_method: bool) -> list[str]:
    """Names of the parameters without a default."""
    if function is None:
        return []
    given = function.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    positional = positional[: len(positional) - len(given.defaults)][int(is_method) :]
    keywords = [each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return positional + keywords


def _makes_itself(constructor: ast.FunctionDef, name: str, classes: dict[str, ast.ClassDef]) -> str:
    """The class that a parameter is annotated with, if it is one of the folder that needs no arguments; else ""."""
    given = constructor.args
    annotations = {each.arg: each.annotation for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    annotation = annotations[name]
    kind = annotation.id if isinstance(annotation, ast.Name) else ""
    if kind not in classes:
        return ""
    own = classes[kind]
    decorators = {annotated_name(each.func if isinstance(each, ast.Call) else each) for each in own.decorator_list}
    if "dataclass" in decorators:
        is_whole = not own.bases and all(each.value for each in own.body if isinstance(each, ast.AnnAssign))
        return kind if is_whole else ""
    made_by = _constructor(own, classes, 0)
    return kind if made_by is not None and not _required(made_by, is_method=True) else ""


def _made(function: ast.FunctionDef, modules: set[str]) -> str | None:
    """The class that a factory returns, by its annotation or its last line; None where it returns no module."""
    annotated = annotated_name(function.returns) if function.returns is not None else ""
    if annotated in modules or annotated in _MADE:
        return annotated
    returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
    names = [annotated_name(each.func) for each in returned if isinstance(each, ast.Call)]
    return next((name for name in names if name in modules), None)
