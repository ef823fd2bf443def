"""Positions that a pass computes or reads, and on which no output depends: what is named after them, made other."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.receivers import Receiver, receivers
from nsa_doctor.probes.hooks.tensor_owners import tensors_held
from nsa_doctor.probes.internal import DispatchWatcher, is_transformed, memory_of, tree_map, version_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_MEANT = re.compile(r"pos|position|positions|positional|posemb|posenc|rope|rotary|alibi|sinusoid|sinusoidal|sinusoids")
_SHORT = re.compile(r"pe|wpe")  # of tables
_OTHERWISE = {"wise", "positionwise", "ffn", "weight", "pool"}  # a layer for each position, a weight of positives
_OF_TIME = re.compile(
    r"(to_)?(time|timestep|t|noise|noise_level|sigma|diffusion_step)s?_?(mlp|emb\w*|cond\w*|proj\w*)\d*"
)
_LENGTHS = (19, 67)
_NOISE = 1e-9  # of float64, beside the largest output


@dataclass
class Pass:
    """What one pass made of positions: whose outputs, which tables it read, where, and to whom they were handed."""

    output: Tensor
    used: dict[str, Place] = field(default_factory=dict)
    receivers: list[Receiver] = field(default_factory=list)

    @property
    def unread(self) -> Receiver | None:
        """The last function that was handed them and does not read them."""
        return next((each for each in reversed(self.receivers) if not each.reads), None)


def uses_of_positions(sp: BuiltModule, length: int) -> Pass:
    """A pass of that length; where nothing is named after positions or some of it is trained, `used` is empty."""
    with torch.no_grad():
        done = _passed(sp, sp.input(length))
    trained = {name for name, each in sp.module.named_parameters() if each.requires_grad}
    if any(name == each or name.startswith(f"{each}.") for each in done.used for name in trained):
        done.used.clear()  # whether it learns, and so has an effect, is the business of others
    return done


def lengths_of(sp: BuiltModule) -> list[int]:
    """At which lengths it is seen whether they are."""
    return sorted({min(each, sp.subject.max_length) for each in _LENGTHS})


def are_idle(sp: BuiltModule) -> bool:
    """Whether other values in place of all that is named after positions give the same output, bit for bit.

    Outputs that differ by themselves say nothing, nor does a call that fails with other values.
    """
    for length in lengths_of(sp):
        x = sp.input(length)
        with torch.no_grad():
            plain, again = sp(x), sp(x)
            try:
                other = _passed(sp, x, is_other=True)
            except SubjectFailedError:
                return False
        if not (torch.equal(plain, again) and torch.equal(plain, other.output)):
            return False
    return True


def is_blind_to_order(sp: BuiltModule) -> bool:
    """Whether tokens in another order give the same outputs in that order, which differ from token to token."""
    return all(_moves_along(sp, sp.input(length)) for length in lengths_of(sp))


def reads_without_order(sp: BuiltModule) -> bool:
    """Whether the last output depends on the tokens before it, and not on their order, as of one causal layer."""
    return all(_adds_up(sp, sp.input(length)) for length in lengths_of(sp))


def _moves_along(sp: BuiltModule, x: Tensor) -> bool:
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(sp.subject.seed))
    with torch.no_grad():
        plain, other = sp(x), sp(x[:, order])
    bound = _NOISE * float(plain.abs().max())
    if other.shape != plain.shape or not bool(((other - plain[:, order]).abs() <= bound).all()):
        return False
    return not bool(((plain - plain[:, order]).abs() <= bound).all())


def _adds_up(sp: BuiltModule, x: Tensor) -> bool:
    order = torch.randperm(x.shape[1] - 1, generator=torch.Generator().manual_seed(sp.subject.seed))
    others = torch.cat((sp.input(x.shape[1], seed=sp.subject.seed + 1)[:, :-1], x[:, -1:]), 1)
    with torch.no_grad():
        plain, moved, other = (sp(each)[:, -1] for each in (x, torch.cat((x[:, order], x[:, -1:]), 1), others))
    bound = _NOISE * float(plain.abs().max())
    return bool(((plain - moved).abs() <= bound).all()) and not bool(((plain - other).abs() <= bound).all())


def _passed(sp: BuiltModule, x: Tensor, is_other: bool = False) -> Pass:
    frames = FrameFilter(sp.subject.packages)
    places = Places(frames)
    places.know(sp.module)
    made: set[int] = set()
    given: dict[nn.Module, set[tuple[int, int, torch.Size]]] = {}
    done = Pass(x)
    chance = torch.Generator().manual_seed(sp.subject.seed)

    def changed(value: Any) -> Any:
        if not isinstance(value, Tensor) or not _is_inexact(value):
            return value
        made.add(memory_of(value))
        return value + torch.randn(value.shape, generator=chance).to(value) if is_other else value

    def before(module: nn.Module, args: Any) -> None:
        given[module] = _states(args)

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: Any, answer: Any) -> Any:
            if _states(answer) <= given.get(module, set()):
                return answer  # it stands where positions might be, and hands on what it is given
            if any(map(_is_inexact, tensors_in(answer))):
                done.used.setdefault(path, places.here()[0])
            return tree_map(changed, answer)

        return hook

    tables = dict(_tables(sp.module))
    with ExitStack() as stack:
        for path, module in modules_of_positions(sp.module):
            stack.callback(module.register_forward_pre_hook(before).remove)
            stack.callback(module.register_forward_hook(after(path)).remove)
        stack.enter_context(places.watching())
        if is_other:
            stack.enter_context(_other_values(list(tables.values()), chance))
        else:
            stack.enter_context(_Reading(tables, done.used, places))
            done.receivers = stack.enter_context(receivers(frames, lambda value: _is_of(value, made)))
        done.output = sp(x)
    return done


def _states(value: Any) -> set[tuple[int, int, torch.Size]]:
    """Of each tensor in it: its memory, how often that was written into, and its shape."""
    return {(memory_of(each), version_of(each), each.shape) for each in tensors_in(value) if not is_transformed(each)}


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_writable(tensor: Tensor) -> bool:
    """Whether other numbers can be written there: into memory of its own for each of them."""
    is_expanded = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return _is_inexact(tensor) and not tensor.is_inference() and not is_expanded


def _is_of(value: Any, memories: set[int]) -> bool:
    """Whether some of it lies in one of these memories; what torch.func wraps lies in none."""
    return any(memory_of(each) in memories for each in tensors_in(value) if not is_transformed(each))


class _Reading(DispatchWatcher):
    """Notes which tables an operation reads, and where."""

    def __init__(self, tables: dict[str, Tensor], used: dict[str, Place], places: Places) -> None:
        super().__init__()
        self._names = {memory_of(table): name for name, table in tables.items()}
        self._used, self._places = used, places

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        for tensor in tensors_in(args, kwargs):
            name = self._names.get(memory_of(tensor))
            if name is not None:
                self._used.setdefault(name, self._places.here()[0])
        return func(*args, **kwargs)


@contextmanager
def _other_values(tables: list[Tensor], chance: torch.Generator) -> Iterator[None]:
    kept = [table.clone() for table in tables]
    for table in tables:
        table.add_(torch.randn(table.shape, generator=chance).to(table))
    try:
        yield
    finally:
        for table, values in zip(tables, kept, strict=True):
            table.copy_(values)


def modules_of_positions(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts that are named after positions, or whose class is, by their paths.

    Not what a part around it has for a time or an amount of noise, which sines tell as they tell a place.
    """
    for path, module in root.named_modules():
        name = path.rpartition(".")[2]
        if any(_OF_TIME.fullmatch(part) for part in path.split(".")):
            continue
        if module is not root and (_is_of_positions(name, _SHORT) or _is_of_positions(type(module).__name__)):
            yield path, module


def _tables(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and plain attributes that are named so, of real and complex numbers."""
    for path, parameter in root.named_parameters():
        if _is_of_positions(path.rpartition(".")[2], _SHORT) and _is_writable(parameter):
            yield path, parameter
    for holder in tensors_held(root):
        if _is_of_positions(holder.attribute, _SHORT) and _is_writable(holder.tensor):
            yield f"{holder.module}.{holder.way}".lstrip("."), holder.tensor


def _is_of_positions(name: str, also: re.Pattern[str] | None = None) -> bool:
    words = [word.lower() for word in _WORDS.findall(name.replace("RoPE", "Rope"))]
    if _OTHERWISE & set(words):
        return False
    return any(_MEANT.fullmatch(word) or (also is not None and also.fullmatch(word)) for word in words)
