"""Activations, norms and poolings that a constructor is handed and keeps, and that nothing calls or reads."""

import ast
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.unread_parts import Kind, kind_of
from nsa_doctor.probes.hooks.around_parts import around_parts
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.attribute_reads import is_read_anywhere
from nsa_doctor.probes.hooks.unread_arguments import UnreadArgument, unread_arguments
from nsa_doctor.probes.hooks.unread_variables import READING_ALL
from nsa_doctor.probes.internal import DispatchWatcher, schema_of
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.identity import loaded_files
from nsa_doctor.probes.tensors.operations import operation_name
from nsa_doctor.subject.contract import Subject

_OWN = 3  # the rank of the subject's own code
_LENGTH = 37
_CURVES = re.compile(r"(.*_)?(act|activations?|nonlin\w*)(_.*)?", re.IGNORECASE)
_ARGUMENTS = re.compile(r"(.*_)?(act|activations?|nonlin\w*|norm|normali[sz]\w*|pool\w*)(_.*)?", re.IGNORECASE)
_CURVE = re.compile(
    r"((quick|new|fast|approximate)_?)?(gelu|relu6?|silu|swish|h?ard\w+|mish|tanh|sigmoid|elu|celu|selu|softplus|softsign"
    r"|leaky_?relu|log_?sigmoid|tanhshrink|threshold|rrelu|glu|geglu|swiglu|reglu)(new|fast|tanh)?",
    re.IGNORECASE,
)
_WORK = {
    Kind.ACTIVATION: re.compile(
        r"(\w*relu6?|gelu|silu|sigmoid|tanh|elu|hard\w+|softplus|mish|selu|celu|glu|clamp\w*|threshold|log_sigmoid\w*"
        r"|erf|sin|cos|exp|pow|maximum|square|where|abs)(_|_forward)?"
    ),
    Kind.NORM: re.compile(r".*(norm|rsqrt|sqrt|var|std).*"),
    None: re.compile(r".*(mean|sum|max|min|pool).*"),
}
_OF_PROBABILITIES = ("sigmoid", "logsigmoid", "softmax", "logsoftmax", "softmax2d")
_OF_OTHERS = "::"  # in the name of an operation that is not torch's own
_ALL_AT_ONCE = {*READING_ALL, "save_hyperparameters", "register_to_config", "capture_init"}


@dataclass(frozen=True)
class HandedPart:
    """What the module of that path was handed, by which argument, under which name it keeps it, and in which line."""

    path: str
    holder: nn.Module
    argument: str
    attribute: str
    value: str
    place: Place
    num_passes: int


def handed_parts(subject: Subject) -> Iterator[HandedPart]:
    """Those that whoever wrote down the holder's class gave it, in place of the argument's default.

    One that is handed on to something else, or whose work the holder's forward does by another way, is none of them.
    """
    frames = FrameFilter(subject.packages)
    with unread_arguments(_is_wanted, reads=lambda code, name: False) as given:
        root = built(subject).module
    kept = [(each, attribute, line) for each in given for attribute, line in _kept(each, given, frames)]
    paths = {id(part): path for path, part in root.named_modules()}
    kept = [each for each in kept if id(each[0].module) in paths]
    handed = {id(getattr(each.module, attribute)) for each, attribute, _ in kept} | {id(each.value) for each in given}
    if not kept:
        return
    watch, num_passes = _watched(subject)
    loaded = set(loaded_files(subject.packages).values())
    for each, attribute, line in kept:
        path, part = paths[id(each.module)], getattr(each.module, attribute)
        is_called = isinstance(part, nn.Module) and paths[id(part)] in watch.called
        if is_called or path not in watch.called or _is_for_callers(path, part):
            continue
        if _is_done_otherwise(part, _operations(each.module, part, watch, paths, handed)):
            continue
        if not is_read_anywhere(each.module, attribute, frames, loaded, is_for_use=True):
            kind = type(each.module).__name__
            place = Place(module=path, module_class=kind, file=line.file, line=line.line, function=line.function)
            yield HandedPart(path, each.module, each.name, attribute, _words(part), place, num_passes)


def _is_wanted(name: str, value: Any) -> bool:
    """Whether it is something to compute with, or says which."""
    if isinstance(value, nn.Module):
        return _computes(value) and (kind_of(value) == Kind.ACTIVATION or _is_torchs(value))
    if isinstance(value, str):
        return _ARGUMENTS.fullmatch(name) is not None and _CURVE.fullmatch(value) is not None
    if not callable(value) or _ARGUMENTS.fullmatch(name) is None:
        return False
    return _CURVES.fullmatch(name) is not None or _is_torchs(value)


def _is_torchs(value: Any) -> bool:
    """Whether it is a module, a class or a function of torch: norms and pools of others may be for anything."""
    made = value.func if isinstance(value, partial) else value
    made = type(made) if isinstance(made, nn.Module) else made
    return str(getattr(made, "__module__", "")).partition(".")[0] == "torch"


def _is_for_callers(path: str, part: Any) -> bool:
    """Whether the outermost module keeps what makes probabilities of its logits: whoever calls it applies that."""
    return not path and _plain(_words(part)) in _OF_PROBABILITIES


def _computes(part: nn.Module) -> bool:
    return kind_of(part) in (Kind.ACTIVATION, Kind.NORM) or _is_pooling(part)


def _is_pooling(part: nn.Module) -> bool:
    is_named = re.search(r"pool", type(part).__name__, re.IGNORECASE) is not None
    return is_named and not any(True for _ in part.parameters())


def _kept(given: UnreadArgument, every: list[UnreadArgument], frames: FrameFilter) -> Iterator[tuple[str, Line]]:
    """The one attribute that holds what was given, if the constructors do nothing else with it."""
    default = attempt(lambda: given.default)
    if not given.is_meant or default is given.value or (isinstance(default, str) and default == given.value):
        return
    held = {**dict(given.module.named_children()), **vars(given.module)}
    names = [name for name, value in held.items() if _is_made_of(value, given.value)]
    if len(names) != 1:
        return
    line = line_that_makes(given.module, names[0])
    if line is None or line.function != "__init__" or frames.rank(line.file) != _OWN:
        return
    same = [each for each in every if each.module is given.module and each.value is given.value]
    if all(_only_keeps(each, names[0]) for each in same):
        yield names[0], line


def _is_made_of(held: Any, value: Any) -> bool:
    if isinstance(held, nn.Module) and not _computes(held):
        return False
    if isinstance(value, str):
        return callable(held) and _plain(_words(held)) == _plain(value)
    made = value.func if isinstance(value, partial) else value
    return held is value or (isinstance(made, type) and type(held) is made)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _words(held: Any) -> str:
    return str(getattr(held, "__name__", type(held).__name__))


def _only_keeps(given: UnreadArgument, attribute: str) -> bool:
    """Whether a constructor does nothing with its argument but to convert it, keep it and hand it to its base."""
    source = attempt(lambda: ast.parse(textwrap.dedent(inspect.getsource(given.code))).body[0])
    if not isinstance(source, ast.FunctionDef):
        return False
    named = [node for node in ast.walk(source) if isinstance(node, (ast.Name, ast.Attribute))]
    if _ALL_AT_ONCE & {getattr(node, "attr", getattr(node, "id", "")) for node in named}:
        return False
    allowed: set[int] = set()
    for node in ast.walk(source):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for value, made in _pairs(targets, node.value):
                if all(_is_target(each, given.name, attribute) for each in made):
                    allowed |= _ids(value)
        elif isinstance(node, ast.If):
            inner = [*node.body, *node.orelse]
            if all(isinstance(each, (ast.Assign, ast.Raise, ast.Pass)) for each in inner):
                allowed |= _ids(node.test)
        elif isinstance(node, ast.Assert):
            allowed |= _ids(node.test)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
            allowed |= _ids(node)
    loads = [node for node in named if isinstance(node, ast.Name) and node.id == given.name]
    return all(id(node) in allowed for node in loads if isinstance(node.ctx, ast.Load))


def _pairs(targets: Sequence[ast.expr], value: ast.expr) -> list[tuple[ast.expr, Sequence[ast.expr]]]:
    """Each value of an assignment with the targets that hold it: `self.a, self.b = a(), b()` has two."""
    match targets, value:
        case [ast.Tuple(elts=made)], ast.Tuple(elts=values) if len(made) == len(values):
            return [(one, [target]) for target, one in zip(made, values, strict=True)]
    return [(value, targets)]


def _is_target(target: ast.expr, name: str, attribute: str) -> bool:
    if isinstance(target, ast.Attribute):
        return target.attr == attribute
    return isinstance(target, ast.Name) and target.id == name


def _ids(node: ast.AST) -> set[int]:
    return {id(each) for each in ast.walk(node)}


def _operations(holder: nn.Module, part: Any, watch: "_Calls", paths: dict[int, str], handed: set[int]) -> Counter[str]:
    """What the holder's forward runs itself, or by children that it is not handed too, nor torch's of other work."""
    found = Counter(watch.operations[paths[id(holder)]])
    for child in holder.children():
        is_anothers = _is_torchs(child) and _computes(child) and type(child) is not type(part)
        if id(child) not in handed and not is_anothers:
            found.update(watch.operations.get(paths[id(child)], Counter()))
    return found


def _is_done_otherwise(part: Any, operations: Counter[str]) -> bool:
    """Whether operations are of the kind that the part is for, or are not torch's own: those may do anything."""
    kind = kind_of(part) if isinstance(part, nn.Module) else Kind.ACTIVATION
    work = _WORK[kind if kind in _WORK else None]
    return any(_OF_OTHERS in name or work.fullmatch(name) for name in operations)


def _watched(subject: Subject) -> tuple["_Calls", int]:
    watch: _Calls | None = None
    modes = dict.fromkeys(("eval" if "eval" in subject.modes else subject.modes[0], subject.modes[0]))
    for mode in modes:
        sp = built(subject, mode=mode)
        watch = _Calls(sp.module, watch)
        with watch.watching(), torch.no_grad():
            sp(sp.input(min(_LENGTH, subject.max_length), 2))
    assert watch is not None
    return watch, len(modes)


class _Calls(DispatchWatcher):
    """Which modules are called, by path, and the operations that each runs itself."""

    def __init__(self, root: nn.Module, before: "_Calls | None") -> None:
        super().__init__()
        self._root, self._stack = root, list[str]()
        self.called: set[str] = set() if before is None else before.called
        self.operations: dict[str, Counter[str]] = {} if before is None else before.operations

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until the region ends."""
        with around_parts(self._root, self._enter, self._leave), self:
            yield

    def run_operation(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        if self._stack:
            schema = schema_of(func)
            is_torchs = schema is None or schema.name.partition("::")[0] in ("aten", "prim", "prims")
            name = operation_name(func) if is_torchs else schema.name
            self.operations[self._stack[-1]][name] += 1
        return func(*args, **kwargs)

    def _enter(self, path: str) -> None:
        self.called.add(path)
        self.operations.setdefault(path, Counter())
        self._stack.append(path)

    def _leave(self) -> None:
        if self._stack:
            self._stack.pop()
