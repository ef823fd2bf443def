"""Parts without parameters that a module builds, that no source reads and no pass calls, and what stands for them."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes, methods_of
from nsa_doctor.probes.hooks.attribute_reads import is_read_anywhere
from nsa_doctor.probes.internal import DROPOUTS, NORMS_BY_BATCH, DispatchWatcher
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.identity import loaded_files
from nsa_doctor.probes.tensors.operations import operation_name
from nsa_doctor.subject.contract import Subject

_OWN = 3  # the rank of the subject's own code
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm, NORMS_BY_BATCH)
_NOT_ACTIVATIONS = (nn.MultiheadAttention, nn.GLU, nn.Threshold)
_ACTIVATION = re.compile(
    r"(quick|new|fast|approximate)?_?(gelu|relu|silu|swish|mish|tanh|sigmoid|elu)\w*", re.IGNORECASE
)
_NORM = re.compile(r"\w*(layer|rms|scale|l2)_?norm\w*", re.IGNORECASE)
_POSITION = re.compile(
    r"(?i:rot(ary|at)|(?<![a-z])rope|sinus|alibi|freqs|relative|timing)|pos(ition)?(al)?(_|$|[A-Z]|emb|enc)|Pos"
)
_NORMALISES = re.compile(r"\w*norm\w*|normalize|rsqrt|var(_mean)?|std(_mean)?")
_SHIFTING = frozenset({"cumsum", "conv1d", "convolution", "roll"})  # tell where a token stands without positions
_SOFTMAX_OPERATIONS = frozenset({"exp", "exp2", "logsumexp", "sigmoid"})
_PRODUCTS = frozenset({"bmm", "baddbmm"})
_CURVES = re.compile(
    r"(relu|gelu|silu|sigmoid|tanh|elu|leaky_relu|hardtanh|hardswish|hardsigmoid|softplus|mish|selu|celu|glu|clamp\w*"
    r"|threshold|prelu|rrelu|log_sigmoid\w*|erf|sin|cos|where|exp|abs|pow|maximum|\w*softmax|square)_?"
)
_LENGTH = 37


class Kind(StrEnum):
    """What a part is there for."""

    SOFTMAX = "softmax"
    NORM = "norm"
    ACTIVATION = "activation"
    POSITION = "positions"


@dataclass(frozen=True)
class UnreadPart:
    """A part by its path, the line that builds it, and what does its work, if anything does."""

    path: str
    part: nn.Module
    kind: Kind
    place: Place
    instead: str
    num_passes: int


@dataclass
class _Work:
    """What the forward of a module came to: its calls, and which operations ran inside them, how often."""

    num_calls: int = 0
    operations: Counter[str] = field(default_factory=Counter)


def unread_parts(subject: Subject) -> Iterator[UnreadPart]:
    """Those of holders whose forward runs; what a parent's constructor builds for a parent's forward is none."""
    frames = FrameFilter(subject.packages)
    root = built(subject).module
    candidates = [each for each in _built_by_their_holders(root, frames) if each[3] is not None]
    if not candidates:
        return
    loaded = set(loaded_files(subject.packages).values())
    reads: dict[tuple[type, str], bool] = {}
    for _, holder, name, _ in candidates:
        key = type(holder), name
        if key not in reads:
            reads[key] = is_read_anywhere(holder, name, frames, loaded)
    left = [each for each in candidates if not reads[type(each[1]), each[2]]]
    if not left:
        return
    worked, num_passes = _watched(subject)
    for path, holder, name, line in left:
        own = f"{path}.{name}".removeprefix(".")
        work, kind = worked.get(path, _Work()), kind_of(getattr(holder, name))
        if kind is not None and line is not None and work.num_calls and not worked.get(own, _Work()).num_calls:
            place = Place(
                module=path, module_class=type(holder).__name__, file=line.file, line=line.line, function=line.function
            )
            beside = _names_in(root, worked, type(getattr(holder, name)))
            idle = next(_idle_beside(path, holder, worked), "")
            left_out = f"its forward leaves {idle} out too" if idle and kind is not Kind.SOFTMAX else ""
            instead = _instead(holder, name, kind, work, beside) or left_out
            yield UnreadPart(own, getattr(holder, name), kind, place, instead, num_passes)


def kind_of(part: nn.Module) -> Kind | None:
    """What a part without parameters is for; None of what may be left over without harm, as a dropout."""
    name = type(part).__name__
    if isinstance(part, (*_CONTAINERS, nn.Identity, DROPOUTS)) or any(True for _ in part.parameters()):
        return None
    if isinstance(part, (nn.Softmax, nn.LogSoftmax, nn.Softmax2d)):
        return Kind.SOFTMAX
    if isinstance(part, _NORMS) or _NORM.fullmatch(name):
        return Kind.NORM
    is_torchs = type(part).__module__ == nn.ReLU.__module__ and not isinstance(part, _NOT_ACTIVATIONS)
    if is_torchs or _ACTIVATION.fullmatch(name):
        return Kind.ACTIVATION
    return Kind.POSITION if _POSITION.search(name) else None


def _built_by_their_holders(root: nn.Module, frames: FrameFilter) -> Iterator[tuple[str, nn.Module, str, Any]]:
    """Path, holder, name and line of parts that the class builds whose forward is run, in code of the subject's own."""
    for path, holder in root.named_modules():
        if isinstance(holder, _CONTAINERS):
            continue
        forward = next((kind for kind in type(holder).__mro__ if "forward" in vars(kind)), nn.Module)
        for name, part in holder.named_children():
            if kind_of(part) is None:
                continue
            line = line_that_makes(holder, name)
            if line is not None and line.function == "__init__" and frames.rank(line.file) == _OWN:
                maker = next((kind for kind in type(holder).__mro__ if _has_line(kind, line.line, line.file)), None)
                if maker is not None and issubclass(maker, forward):
                    yield path, holder, name, line


def _has_line(kind: type, line: int, file: str) -> bool:
    """Whether the class's own constructor holds that line."""
    constructor: Any = vars(kind).get("__init__")
    code = getattr(constructor, "__code__", None)
    lines = [each for *_, each in code.co_lines() if each] if code is not None else []
    return code is not None and code.co_filename == file and min(lines) <= line <= max(lines)


def _watched(subject: Subject) -> tuple[dict[str, _Work], int]:
    """What every module did in passes of each mode, by its path, and how many passes there were."""
    worked: dict[str, _Work] = {}
    num_passes = 0
    for mode in dict.fromkeys(("eval" if "eval" in subject.modes else subject.modes[0], subject.modes[0])):
        sp = built(subject, mode=mode)
        with _Operations(sp.module, worked).watching(), torch.no_grad():
            for length in dict.fromkeys(min(each, subject.max_length) for each in (_LENGTH, 8)):
                sp(sp.input(length, 2))
                num_passes += 1
    return worked, num_passes


class _Operations(DispatchWatcher):
    """Counts the operations that run inside each module."""

    def __init__(self, root: nn.Module, worked: dict[str, _Work]) -> None:
        super().__init__()
        self._root, self._worked, self._calls = root, worked, list[str]()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until the region ends."""
        handles = []
        for path, part in self._root.named_modules():
            handles.append(part.register_forward_pre_hook(lambda _part, _given, path=path: self._enter(path)))
            handles.append(part.register_forward_hook(lambda *_given: self._leave(), always_call=True))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        for path in set(self._calls):
            self._worked[path].operations[operation_name(func)] += 1
        return func(*args, **kwargs)

    def _enter(self, path: str) -> None:
        self._worked.setdefault(path, _Work()).num_calls += 1
        self._calls.append(path)

    def _leave(self) -> None:
        if self._calls:
            self._calls.pop()


def _instead(holder: nn.Module, name: str, kind: Kind, work: _Work, beside: Iterator[str]) -> str:
    """What does the part's work in its holder, in words, or why it need not be done; empty where nothing does."""
    done = work.operations
    if kind is Kind.SOFTMAX:
        found = [each for each in done if "softmax" in each or "attention" in each or each in _SOFTMAX_OPERATIONS]
        is_divided = "div" in done and ("sum" in done or "cumsum" in done)
        if found or is_divided:
            return f"its forward runs {found[0] if found else 'a division by a sum'}"
        products = sum(done[each] for each in _PRODUCTS)
        curve = next((each for each in done if _CURVES.fullmatch(each)), "")
        return f"its forward runs {curve}" if curve else "" if products > 1 else "its forward weighs nothing"
    if kind is Kind.ACTIVATION:
        curve = next((each for each in done if _CURVES.fullmatch(each)), "")
        return f"its forward runs {curve}" if curve else ""
    names = [each for each in _words(holder) if each != name]
    if kind is Kind.NORM:
        found = [each for each in names if _NORMALISES.fullmatch(each) and not hasattr(holder, each)]
        return f"its forward names {found[0]}" if found else ""
    others = [each for each in (*names, *beside) if _POSITION.search(each)]
    others += [each for each in done if each in _SHIFTING]
    return f"{others[0]} may tell positions" if others else ""


def _idle_beside(path: str, holder: nn.Module, worked: dict[str, _Work]) -> Iterator[str]:
    """Names of its other parts, with parameters, that no pass calls: a whole branch may be left over."""
    for name, part in holder.named_children():
        own = f"{path}.{name}".removeprefix(".")
        is_called = any(each == own or each.startswith(f"{own}.") for each in worked)
        if not is_called and any(True for _ in part.parameters()):
            yield name


def _words(holder: nn.Module) -> Iterator[str]:
    """Every name that methods of its class beside the constructor use."""
    for _, method in methods_of(holder):
        if method.name != "__init__":
            for node in ast.walk(method):
                if isinstance(node, ast.Attribute):
                    yield node.attr
                elif isinstance(node, ast.Name):
                    yield node.id
                elif isinstance(node, ast.arg):
                    yield node.arg


def _names_in(root: nn.Module, worked: dict[str, _Work], like: type) -> Iterator[str]:
    """Names and classes of all parts, parameters and buffers, without parts of that class which no pass calls."""
    for path, part in root.named_modules():
        if type(part) is not like or path in worked:
            yield from (path.rpartition(".")[2], type(part).__name__)
            yield from (each for each, _ in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)))
