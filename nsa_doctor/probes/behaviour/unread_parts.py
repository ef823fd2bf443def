"""Parts without parameters that a module builds, that no source reads and no pass calls, and why, if they may be."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.around_parts import around_parts
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.attribute_reads import is_read_anywhere
from nsa_doctor.probes.internal import DROPOUTS, NORMS_BY_BATCH, DispatchWatcher, memory_of
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
_NORMALISING = re.compile(r"softmax|attention|exp$|exp2|logsumexp|sigmoid|norm|rsqrt|sqrt|var|std|cumsum")
_PRODUCTS = frozenset({"mm", "bmm", "baddbmm"})
_KEEPING = frozenset(
    {"view", "unsafe_view", "reshape", "expand", "transpose", "permute", "t", "clone", "to_copy", "to", "contiguous"}
    | {
        "unsqueeze",
        "squeeze",
        "select",
        "slice",
        "tril",
        "triu",
        "masked_fill",
        "add",
        "sub",
        "native_dropout",
        "alias",
    }
    | {"detach", "where"}
)
_SCALING = frozenset({"mul", "mul_", "div", "div_"})
_EXACT = 1e-4
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
    """A part by its path, the line that builds it, and why it need not be missed; empty where it is."""

    path: str
    part: nn.Module
    kind: Kind
    place: Place
    instead: str
    num_passes: int


@dataclass
class _Work:
    """What the forward of a module came to: its calls, which operations ran inside them, and products of raw scores."""

    num_calls: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    num_raw: int = 0


def unread_parts(subject: Subject) -> Iterator[UnreadPart]:
    """Those of holders whose forward runs; what a parent's constructor builds for a parent's forward is none."""
    frames = FrameFilter(subject.packages)
    root = built(subject).module
    candidates = [each for each in _built_by_their_holders(root, frames) if each[3] is not None]
    if not candidates:
        return
    worked, num_passes = _watched(subject)
    paths = {id(part): path for path, part in root.named_modules()}  # of what has two names the first
    idle = [each for each in candidates if paths[id(getattr(each[1], each[2]))] not in worked and each[0] in worked]
    loaded = set(loaded_files(subject.packages).values()) if idle else set()
    reads: dict[tuple[type, str], bool] = {}
    for path, holder, name, line in idle:
        key = type(holder), name
        if key not in reads:
            reads[key] = is_read_anywhere(holder, name, frames, loaded)
        kind = kind_of(getattr(holder, name))
        if kind is None or reads[key]:
            continue
        place = Place(
            module=path, module_class=type(holder).__name__, file=line.file, line=line.line, function=line.function
        )
        part, own = getattr(holder, name), f"{path}.{name}".removeprefix(".")
        yield UnreadPart(own, part, kind, place, _instead(kind, worked[path]), num_passes)


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
        for length in dict.fromkeys(min(each, subject.max_length) for each in (_LENGTH, 8)):
            with _Operations(sp.module, worked, length).watching(), torch.no_grad():
                sp(sp.input(length, 2))
            num_passes += 1
    return worked, num_passes


class _Operations(DispatchWatcher):
    """Counts the operations that run inside each module, and follows scores of pairs of tokens that nothing curves."""

    def __init__(self, root: nn.Module, worked: dict[str, _Work], length: int) -> None:
        super().__init__()
        self._root, self._worked, self._length, self._calls = root, worked, length, list[str]()
        self._trained = {memory_of(each) for each in (*root.parameters(), *root.buffers())}
        self._raw = dict[int, Tensor]()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until the region ends."""
        with around_parts(self._root, self._enter, self._leave), self:
            yield

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        name, result = operation_name(func), func(*args, **kwargs)
        for path in set(self._calls):
            self._worked[path].operations[name] += 1
        attempt(lambda: self._follow(name, args, result))
        return result

    def _follow(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Note whether the result is a product of tokens with tokens, or what keeps such scores as they are."""
        given = [each for each in args if isinstance(each, Tensor)]
        is_from_raw = any(id(each) in self._raw for each in given)
        if name in _PRODUCTS:
            if is_from_raw:
                for path in set(self._calls):
                    self._worked[path].num_raw += 1
            elif self._is_of_pairs(given[-1], result) and not any(memory_of(each) in self._trained for each in given):
                self._raw[id(result)] = result
        elif is_from_raw and self._is_kept(name, args) and isinstance(result, Tensor):
            self._raw[id(result)] = result

    def _is_of_pairs(self, last: Tensor, result: Tensor) -> bool:
        """Whether it is of tokens with tokens, and sums over anything but tokens."""
        size = self._length
        return tuple(result.shape[-2:]) == (size, size) and last.shape[-2] != size

    def _is_kept(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether scores are as raw as before: what weighs them by how many there are, or by each other, is none."""
        if name in _KEEPING:
            return True
        if name not in _SCALING or len(args) < 2:
            return False
        factor = args[1] if isinstance(args[0], Tensor) and id(args[0]) in self._raw else args[0]
        if isinstance(factor, Tensor):
            if name.startswith("mul") and factor.ndim > 1:
                return bool(((factor == 0) | (factor == 1)).all())
            if factor.numel() != 1:
                return False
        scale = abs(float(factor))
        return not any(abs(scale - each) < _EXACT * each for each in self._sizes())

    def _sizes(self) -> Iterator[float]:
        for size in range(max(self._length - 1, 1), self._length + 2):
            yield from (size, 1 / size, size**0.5, size**-0.5)

    def _enter(self, path: str) -> None:
        self._worked.setdefault(path, _Work()).num_calls += 1
        self._calls.append(path)

    def _leave(self) -> None:
        if self._calls:
            self._calls.pop()


def _instead(kind: Kind, work: _Work) -> str:
    """Why the part need not be missed, in words; empty where attention weighs by raw scores without it."""
    done = work.operations
    if kind is Kind.SOFTMAX:
        found = next((each for each in done if _NORMALISING.search(each)), "")
        if found:
            return f"its forward runs {found}"
        if "div" in done and ("sum" in done or "cumsum" in done):
            return "its forward runs a division by a sum"
        curve = next((each for each in done if _CURVES.fullmatch(each)), "")
        return f"its forward runs {curve}" if curve else "" if work.num_raw else "its forward weighs by no raw scores"
    curve = next((each for each in done if _CURVES.fullmatch(each)), "") if kind is Kind.ACTIVATION else ""
    return f"its forward runs {curve}" if curve else "it may be left over"
