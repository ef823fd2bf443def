"""Trainable parameters that come to nothing: that no call uses, or whose values change no output."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for, trainable, watched_pass
from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.influence import Influence
from nsa_doctor.probes.gradients.stuck import is_zero
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes, read_beside, read_for_nothing, taken_in_place_of
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.tensor_owners import holders, roots_of
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.stepping import step
from nsa_doctor.probes.model.training import forward_backward, new_optimizer
from nsa_doctor.subject.contract import Subject

_FURTHER = (3, 131, 260, 521)
NUM_SHUFFLED = 3
_LARGE = 30.0
_HANDLING = re.compile(  # not computing: `init_weights` and `apply`, though not `init_memory` and `apply_rotary`
    r"_*(post_)?init(iali[sz]e)?(_?(self|weights?|param\w*|embed\w*|state|layers?|modules?))?_*"
    r"|_*(reset|freez|unfreez|tie|load|repr|extra_repr)\w*|\w*(param|optim|state_dict|device)\w*|_*(apply|cuda|cpu|to)_*"
)
_WEIGHTED = (nn.Embedding, nn.Linear, nn.Conv1d)
_ROUNDINGS = 1e3
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass
class Looked:
    """What became of each parameter over all passes: `used` somewhere, a gradient that is not zero, one that is."""

    used: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    zero: set[str] = field(default_factory=set)
    passes: list[frozenset[str]] = field(default_factory=list)

    def add(self, used: set[str], moved: set[str], zero: set[str]) -> None:
        """Take in one pass."""
        self.used |= used | moved | zero
        self.moved |= moved
        self.zero |= zero
        self.passes.append(frozenset(used | moved | zero))


@dataclass(frozen=True)
class Idle:
    """The topmost module (or the parameter itself) that comes to nothing: its path, its parameters, and how.

    used_beside: the part of another layer of the same class and list that is its like and is used.
    """

    path: str
    names: tuple[str, ...]
    is_used: bool
    is_mentioned: bool
    used_beside: str = ""


def idle(subject: Subject) -> list[Idle]:
    """What comes to nothing in every pass: of several lengths, batches, modes and values of parameters and inputs."""
    sp = built(subject, mode="train")
    every = [name for name, _ in trainable(sp.module)]
    looked = Looked()
    cancelled = [name for name in _cancelled(subject) if not _matters(subject, name)]
    for look in _passes(subject):
        if set(every) <= looked.moved:
            return _topmost(sp.module, cancelled, is_used=True)
        found = attempt(look)
        if isinstance(found, Caught):
            if isinstance(found.error, NotComparableError):
                continue
            raise found.error
        looked.add(*found)
    routed = set(_routed(sp.module, looked))
    unused = [name for name in every if name not in looked.used and not name.startswith(tuple(routed))]
    flat = [name for name in every if name in looked.zero - looked.moved and not name.startswith(tuple(routed))]
    flat = [*(name for name in flat if not _matters(subject, name)), *cancelled]
    called = _called(subject) if unused else frozenset()
    left_out = _topmost(sp.module, unused, is_used=False, called=called)
    left_out = [replace(each, used_beside=_used_beside(sp.module, each, looked, called)) for each in left_out]
    return [*left_out, *_topmost(sp.module, flat, is_used=True)]


def _used_beside(root: nn.Module, found: Idle, looked: Looked, called: frozenset[str]) -> str:
    """The like of it in another layer of its list that is called too and uses its own; empty where there is none.

    Nor where the first or the last of the list is the only one that leaves it out, which has nothing before or after.
    """
    holder, _, own = found.path.rpartition(".")
    pattern = re.compile(re.sub(r"(^|\\\.)\d+(?=\\\.|$)", r"\1\\d+", re.escape(holder)))
    kind = type(part_at(root, holder))
    alike = [path for path, part in root.named_modules() if pattern.fullmatch(path) and type(part) is kind]
    alike = [f"{path}.{own}" for path in alike if path in called]
    used = [like for like in alike if any(name == like or name.startswith(f"{like}.") for name in looked.used)]
    left_out = [like for like in alike if like not in used]
    is_at_an_end = left_out in (alike[:1], alike[-1:])
    return "" if is_at_an_end or not used else used[0]


def _called(subject: Subject) -> frozenset[str]:
    """Paths of the modules whose forward runs in a pass: what they leave idle is a part of them."""
    sp = built(subject, mode="train")
    found: set[str] = set()
    for path, part in sp.module.named_modules():
        part.register_forward_pre_hook(lambda _part, _given, path=path: found.add(path))
    attempt(lambda: sp(sp.input(lengths_for(subject)[0], batch=2)))
    return frozenset(found)


def _cancelled(subject: Subject) -> Iterator[str]:
    """Weights of maps and tables whose gradient in float64 is rounding alone, and whose values change no output.

    A shift that a softmax or a norm forgets does so to them. A vector that is added at each token may be left in: that
    of keys.
    """
    sp = comparable_module(subject, mode="train")
    if sp.dtype != "float64":
        return
    weights = {f"{path}.weight".removeprefix(".") for path, m in sp.module.named_modules() if isinstance(m, _WEIGHTED)}
    left = {name for name, each in trainable(sp.module) if name in weights or _is_table(name, each)}
    for length in lengths_for(subject):
        found = attempt(lambda length=length: forward_backward(sp, sp.input(length, batch=2)).gradients)
        gradients = {} if isinstance(found, Caught) else found
        sizes = {name: float(each.to_dense().abs().max()) for name, each in gradients.items() if each.numel()}
        due = _ROUNDINGS * torch.finfo(torch.float64).eps * max(sizes.values(), default=0.0)
        left = {name for name in left if 0 < sizes.get(name, 0.0) <= due}
        if not left:
            return
    influence = attempt(lambda: Influence(sp, sp.input(lengths_for(subject)[-1])))
    if isinstance(influence, Influence):
        yield from (name for name, p in trainable(sp.module) if name in left and not influence.of_large(p))


def _is_table(name: str, parameter: Tensor) -> bool:
    return parameter.dim() > 1 and "bias" not in name.rpartition(".")[2].lower()


def _passes(subject: Subject) -> Iterator[Callable[[], tuple[set[str], set[str], set[str]]]]:
    """Ways to look, the likeliest to show that all is used first."""
    first, *others = lengths_for(subject)
    further = [min(length, subject.max_length) for length in (*others, *_FURTHER)]
    yield lambda: _look(built(subject, mode="train"), first)
    yield lambda: _look(built(subject, mode="train", is_randomised=False), first)  # clamped within bounds
    for index in range(NUM_SHUFFLED):
        yield lambda index=index: _look(shuffled(built(subject, mode="train"), index), first, seed=index + 1)
    for length in dict.fromkeys(further):
        yield lambda length=length: _look(built(subject, mode="train"), length, seed=length)
    if subject.input == "embeddings":
        yield lambda: _look(built(subject, mode="train"), first, scale=_LARGE)
        yield lambda: _look(built(subject, mode="train"), first, scale=0.0)
    if "eval" in subject.modes:
        yield lambda: _look(built(subject, mode="eval"), first)
    if subject.loss is not None or subject.train_step is not None:
        yield lambda: _in_training(subject, first)


def _look(sp: BuiltModule, length: int, seed: int = 0, scale: float = 1.0) -> tuple[set[str], set[str], set[str]]:
    """Parameters used without a gradient, with one, and with one of zeros alone, in one pass."""
    x = sp.input(length, batch=2, seed=sp.subject.seed + seed)
    with preserved_state():
        _, watch = watched_pass(sp, x * scale if scale != 1 else x, [])
    kept = {id(root) for holder in holders(sp.module) if holder.tensor.grad_fn for root in roots_of(holder.tensor)}
    named = trainable(sp.module)
    used = {name for name, p in named if p.grad is None and (watch.place_of(p).file or id(p) in kept)}
    zero = {name for name, p in named if p.grad is not None and is_zero(p.grad) and id(p) not in kept}
    return used, {name for name, p in named if p.grad is not None and name not in zero}, zero


def _in_training(subject: Subject, length: int) -> tuple[set[str], set[str], set[str]]:
    """The same of the subject's own loss and training step, which may use more than the forward."""
    sp = built(subject, mode="train")
    x = sp.input(length, batch=2)
    reached: dict[str, Tensor] = {}
    if (loss := subject.loss) is not None:
        with torch.enable_grad():
            loss(sp.module, x).backward()
        reached |= {name: p.grad for name, p in trainable(sp.module) if p.grad is not None}
    if subject.train_step is not None:
        sp = built(subject, mode="train")
        reached |= dict(step(sp, new_optimizer(sp.module), x).gradients)
    zero = {name for name, gradient in reached.items() if is_zero(gradient)}
    return set(), set(reached) - zero, zero


def shuffled(sp: BuiltModule, index: int) -> BuiltModule:
    """The values of each parameter in another order: what is chosen by scores is chosen otherwise."""
    generator = torch.Generator().manual_seed(sp.subject.seed + index)
    with torch.no_grad():
        for parameter in sp.module.parameters():
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return sp


def in_other_orders(subject: Subject, lengths: Sequence[int]) -> Iterator[tuple[BuiltModule, int]]:
    """At each length, weights as they are built and in other orders: what is shut once is open another time."""
    served = dict.fromkeys(min(length, subject.max_length) for length in lengths)
    for length in list(served)[: 1 if subject.is_slow else None]:
        yield built(subject, mode="train"), length
        for index in range(NUM_SHUFFLED):
            yield shuffled(built(subject, mode="train"), index), length


def _matters(subject: Subject, name: str) -> bool:
    """Whether other values of it change the output, with its module as it starts, shuffled and in general position."""
    for index in range(NUM_SHUFFLED):
        sp = built(subject, mode="train", is_randomised=index > 0)
        sp = shuffled(sp, index) if index > 1 else sp
        x = sp.input(lengths_for(subject)[-1])
        found = attempt(lambda sp=sp, x=x: Influence(sp, x).of_large(dict(sp.module.named_parameters())[name]))
        if found is True or (isinstance(found, Caught) and not isinstance(found.error, NotComparableError)):
            return True
    return False


def _routed(module: nn.Module, looked: Looked) -> Iterator[str]:
    """Beginnings of names in containers of which some passes use other parts than others do: experts, say."""
    for path, part in module.named_modules():
        if isinstance(part, _CONTAINERS):
            parts = [f"{path}.{name}.".removeprefix(".") for name, _ in part.named_children()]
            chosen = {tuple(any(name.startswith(each) for name in used) for each in parts) for used in looked.passes}
            if len({each for each in chosen if any(each)}) > 1:
                yield f"{path}.".removeprefix(".")


def _topmost(
    root: nn.Module, names: Sequence[str], *, is_used: bool, called: frozenset[str] = frozenset()
) -> list[Idle]:
    """One entry for each largest module that is not called, all of whose trainable parameters are among these."""
    groups: dict[str, list[str]] = {}
    for name in names:
        path = name
        while parent := path.rpartition(".")[0]:
            inside = [other for other, _ in trainable(root) if other.startswith(f"{parent}.")]
            if parent in called or not set(inside) <= set(names):
                break
            path = parent
        groups.setdefault(path, []).append(name)
    return [Idle(path, tuple(own), is_used, is_mentioned(root, path)) for path, own in groups.items()]


def is_mentioned(root: nn.Module, path: str) -> bool:
    """Whether a method of the module that holds it names it: there is a way to use it that no pass has taken.

    What starts, counts, saves or moves parameters does not use them, nor does a variable that nothing reads. A part of
    a container is not named, and what goes through the container passes it by.
    """
    owner, _, name = path.rpartition(".")
    holder = part_at(root, owner)
    if isinstance(holder, _CONTAINERS) or read_for_nothing(holder, name) is not None:
        return False
    methods = [value for kind in type(holder).__mro__ if kind is not nn.Module for value in vars(kind).values()]
    codes = [getattr(_undecorated(_getter(each)), "__code__", None) for each in methods]
    return any(name in _names(code) for code in codes if code is not None and not _HANDLING.fullmatch(code.co_name))


def _getter(value: Any) -> Any:
    """What computes a property; any other value itself."""
    return getattr(value, "fget", None) or (value.func if isinstance(value, cached_property) else value)


def _undecorated(method: Any) -> Any:
    """What any number of decorators were put around."""
    found = attempt(lambda: inspect.unwrap(method))
    return method if isinstance(found, Caught) else found


def _names(code: CodeType) -> set[str]:
    """Every attribute and word that a function's code holds, the functions inside it too."""
    words = {each for each in code.co_consts if isinstance(each, str)}
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *words}.union(*inner)


def together(root: nn.Module, found: Sequence[Idle]) -> list[Idle]:
    """One entry for what the same line leaves out of several modules of a class."""
    groups: dict[tuple[object, ...], list[Idle]] = {}
    for each in found:
        place = line_left_out(root, each)[0]
        groups.setdefault((place.file, place.line, each.path.rpartition(".")[2], each.is_used), []).append(each)
    return [replace(same[0], names=tuple(name for each in same for name in each.names)) for same in groups.values()]


def line_left_out(root: nn.Module, found: Idle) -> tuple[Place, str]:
    """Where its holder takes another part in its place, makes it and never reads it, or else where its forward is."""
    holder_path, holder = _holder_of(root, found)
    name = found.path.removeprefix(f"{holder_path}.").partition(".")[0]
    place = definition_place(holder)
    if (other := taken_in_place_of(holder, name)) is not None:
        place = replace(place, **vars(other.line))
        return place, f"; {place.function} reads {other.name} twice and {name} never"
    if (read := read_for_nothing(holder, name)) is not None:
        return replace(place, **vars(read)), f"; {read.function} reads {name}, and nothing what it is read into"
    if not is_mentioned(root, found.path) and (beside := read_beside(holder, name)) is not None:
        place = replace(place, **vars(beside.line))
        return place, f"; {place.function} reads {beside.name}, and no method {name}"
    made = line_that_makes(holder, name) if name in dict(holder.named_parameters(recurse=False)) else None
    if made is None or is_mentioned(root, found.path):
        return place, ""
    return replace(place, **vars(made)), f"; {made.function} makes {name}, and no method reads it"


def _holder_of(root: nn.Module, found: Idle) -> tuple[str, nn.Module]:
    """The nearest module above it of somebody's own, whose forward leaves it out, and its path."""
    path = found.path.rpartition(".")[0]
    while path and type(part_at(root, path)).__module__.startswith("torch."):
        path = path.rpartition(".")[0]
    return path, part_at(root, path)
