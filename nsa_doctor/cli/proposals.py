"""What in a folder may be examined: modules, factories and attention functions, read from their source, never run."""

import ast
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from nsa_doctor.cli.function_signature import convention, spec_by_default
from nsa_doctor.cli.proposal import Proposal
from nsa_doctor.core.like import CONFIG_FILE, HUGGING_FACE
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
_CONFIGURATION = re.compile(r"(\w*_)?(config|configuration|cfg|args)")  # what a parameter of no type is called
_CONFIG_CLASS = re.compile(r"(\w*?)(Config|Configuration|Args)")


@dataclass(frozen=True)
class _File:
    module: str
    folder: str
    place: str
    tree: ast.Module


def proposals(root: Path) -> list[Proposal]:
    """All that was found, what is most probably meant first: modules before functions that may be parts of theirs.

    What cannot be called with one tensor comes behind both, and what cannot be built without arguments last.
    """
    files = list(_files(root))
    classes = {node.name: node for file in files for node in file.tree.body if isinstance(node, ast.ClassDef)}
    modules = {name for name in classes if _is_module(name, classes, 0)}
    found = [each for file in files for each in _in_file(file, modules, classes)]
    found += _of_transformers(root)
    return sorted(found, key=_rank)


def _rank(proposal: Proposal) -> tuple[bool, bool, bool, int, int, str]:
    """What sorts before is more probably meant; a module of which no name speaks of attention is like any function."""
    is_module = proposal.like is None and proposal.weight > 0
    depth = proposal.place.count("/")
    return bool(proposal.missing), not proposal.is_called, not is_module, -proposal.weight, depth, proposal.own_subject


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


def _of_transformers(root: Path) -> Iterator[Proposal]:
    """The model that a config.json of transformers in the folder describes."""
    path = root / CONFIG_FILE
    try:
        described = json.loads(path.read_bytes()) if path.is_file() and path.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(described, dict) and isinstance(described.get("model_type"), str):
        yield Proposal(module="", name="", place=CONFIG_FILE, weight=1, words=f"{HUGGING_FACE}{CONFIG_FILE}")


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
            if (forward := _method(node, "forward")) is not None:
                asked = _required(forward, is_method=True)
                parts = " ".join(_parts(node, modules, classes))
                proposed = _proposed(file, node, made=parts, needs=_needed(node, file, classes))
                yield replace(proposed, asked=tuple(asked) if len(asked) > 1 else ())
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


def _needed(node: ast.ClassDef, file: _File, classes: dict[str, ast.ClassDef]) -> dict[str, str]:
    """The arguments that a module cannot be built without, each with a class that needs none, or "" where none is."""
    constructor = _constructor(node, classes, 0)
    if constructor is None:
        return {}
    return {
        name: _makes_itself(constructor, name, classes) or _configuration_beside(node, name, file)
        for name in _required(constructor, is_method=True)
    }


def _configuration_beside(node: ast.ClassDef, name: str, file: _File) -> str:
    """The dataclass of the file whose defaults make the configuration that a parameter is named after; else "".

    One that is named after the module is it, as GPTConfig after GPT, or the only one.
    """
    if not _CONFIGURATION.fullmatch(name):
        return ""
    kinds = [each for each in file.tree.body if isinstance(each, ast.ClassDef) and _is_whole(each)]
    stems = {each.name: named[1] for each in kinds if (named := _CONFIG_CLASS.fullmatch(each.name))}
    own = [kind for kind, stem in stems.items() if node.name.startswith(stem)]
    if own:
        return max(own, key=len)
    return next(iter(stems)) if len(stems) == 1 else ""


def _is_whole(node: ast.ClassDef) -> bool:
    """Whether it is a dataclass that needs no arguments."""
    decorators = {annotated_name(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list}
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return "dataclass" in decorators and not node.bases and all(each.value for each in fields)


def _makes_itself(constructor: ast.FunctionDef, name: str, classes: dict[str, ast.ClassDef]) -> str:
    """The class that a parameter is annotated with, if it is one of the folder that needs no arguments; else ""."""
    given = constructor.args
    annotations = {each.arg: each.annotation for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    annotation = annotations[name]
    kind = annotation.id if isinstance(annotation, ast.Name) else ""
    if kind not in classes:
        return ""
    own = classes[kind]
    if _is_whole(own):
        return kind
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
