"""What the checks of parameters share: which parameters do not learn, why, and on which line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Profile
from nsa_doctor.core.errors import Caught, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.detached_params import PathWatch
from nsa_doctor.probes.gradients.influence import Influence
from nsa_doctor.probes.gradients.roundings import Roundings
from nsa_doctor.probes.gradients.stuck import freed_together, is_zero, with_zeros_filled
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.tensor_owners import attribute_tensors, holders, roots_of
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.training import LEARNING_RATE, Pass, forward_backward
from nsa_doctor.subject.contract import Subject

MOST_FINDINGS = 3
NUM_STEPS = 3
UNREACHED = "nothing computed from it reaches the output"
_OWED = "a small step there changes the output in proportion"
_DECIDING = 1e3  # times the size of a score, which is read on the host or compared alone
MOST_TRIED = 24  # parameters stepped one by one
_LENGTHS: dict[Profile, tuple[int, ...]] = {"smoke": (67,), "quick": (67, 131), "full": (3, 67, 131, 260, 521)}
_LONGER = (131, 260)  # what is computed for a later part of a longer input shows in these


@dataclass(frozen=True)
class Unlearned:
    """Parameters that do not learn, for one reason on one line; `gradient` says what theirs is."""

    names: tuple[str, ...]
    place: Place
    reason: str
    gradient: str = "exactly zero"


def lengths_for(subject: Subject) -> list[int]:
    """Lengths to train at."""
    return sorted(subject.lengths) or sorted({min(length, subject.max_length) for length in _LENGTHS[subject.profile]})


def ordinary_input(sp: BuiltModule, length: int, batch: int, seed: int) -> Tensor:
    """So many rows; ids without the first and the last: one may stand for padding, which a loss leaves out."""
    x = sp.input(length, batch=batch, seed=seed)
    return x if x.is_floating_point() else 1 + x % max(1, sp.subject.width - 2)


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters that ask for a gradient."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad and p.numel()]


def watched_pass(sp: BuiltModule, x: Tensor, followed: Sequence[Tensor]) -> tuple[Pass, PathWatch]:
    """A forward and backward pass, with the way these tensors take."""
    watch = PathWatch(FrameFilter(sp.subject.packages), followed)
    return comparable_pass(sp, x, watch), watch


def comparable_pass(sp: BuiltModule, x: Tensor, watch: PathWatch | None = None) -> Pass:
    """A forward and backward pass; NotComparableError where the subject raises, which other checks tell of."""
    try:
        return forward_backward(sp, x, watch)
    except SubjectFailedError as failure:
        raise NotComparableError(f"the subject raises in {failure.phase} at S={x.shape[1]}: {failure}") from failure


def without_gradient(sp: BuiltModule, x: Tensor) -> list[tuple[str, nn.Parameter]]:
    """Trainable parameters without a gradient before and after a step of the others; none that a kept loss reaches."""
    comparable_pass(sp, x)
    missing = {name for name, p in trainable(sp.module) if p.grad is None}
    if missing:
        _descend(sp.module)
        comparable_pass(sp, x)
    found = [(name, p) for name, p in trainable(sp.module) if name in missing and p.grad is None]
    elsewhere = _reached_by_kept_losses(sp.module)
    return [(name, p) for name, p in found if id(p) not in elsewhere]


def cut_off(sp: BuiltModule, x: Tensor) -> list[Unlearned]:
    """Parameters without a gradient that the output's dependence on them implies, or that nothing comes of."""
    missing = without_gradient(sp, x)
    if not missing:
        return []
    influence = Influence(sp, x)
    found = [_cut_off(sp, x, name, parameter, influence) for name, parameter in missing[:MOST_TRIED]]
    return _by_line([item for item in found if item is not None], sp.module)


def where_it_is_cut(sp: BuiltModule, x: Tensor) -> tuple[Place, str]:
    """The line that cuts the way back to parameters which should have a gradient; the subject where none is seen."""
    found = attempt(lambda: cut_off(sp, x))
    if isinstance(found, Caught) or not found or not found[0].place.file:
        return definition_place(sp.module), ""
    return found[0].place, f"; {listed(found[0].names)} without a gradient: {found[0].reason}"


def erased(sp: BuiltModule, x: Tensor) -> list[Unlearned]:
    """Parameters whose gradient is nothing but zeros, although the output depends on them smoothly."""
    _, watch = watched_pass(sp, x, [])
    zero = _zero(sp)
    if not zero:
        return []
    influence, found = Influence(sp, x), []
    for name, parameter in zero[:MOST_TRIED]:
        if watch.is_softmax_of_one(parameter):
            reason = "a softmax over an axis of one element is one, whatever goes in"
            found.append(Unlearned((name,), watch.birth_of_zeros(parameter), reason))
        elif influence.of(parameter) and not _is_read_for_padding(sp, x, name):
            place = watch.birth_of_zeros(parameter)
            place = place if place.file else watch.place_of(parameter)
            found.append(Unlearned((name,), place, _OWED))
    return _by_line(found, sp.module)


def _is_read_for_padding(sp: BuiltModule, x: Tensor, name: str) -> bool:
    """Whether it is an embedding of which the row of padding alone is read, which has no gradient by design."""
    part = part_at(sp.module, name.rpartition(".")[0])
    if not isinstance(part, nn.Embedding) or part.padding_idx is None:
        return False
    with torch.no_grad():
        kept = part.weight.clone()
        seed_everything(sp.subject.seed)
        plain = sp(x)
        part.weight.add_(1)
        part.weight[part.padding_idx] = kept[part.padding_idx]
        seed_everything(sp.subject.seed)
        moved = sp(x)
        part.weight.copy_(kept)
    return torch.equal(plain, moved)


def flat(sp: BuiltModule, length: int) -> list[Unlearned]:
    """Parameters of a module as it starts whose gradient is zero step after step, though others would not be.

    Zero is what holds zeros alone, or nothing but rounding.
    """
    names, rounded, roundings = {name for name, _ in trainable(sp.module)}, dict[str, str](), Roundings(sp)
    for step in range(NUM_STEPS):
        x = sp.input(length, seed=sp.subject.seed + step)
        comparable_pass(sp, x)
        exact = {name for name, _ in _zero(sp)}
        rounded = roundings.among(x, names - exact)
        names &= exact | set(rounded)
        if not names:
            return []
        _descend(sp.module)
    elsewhere = _reached_by_kept_losses(sp.module)
    named = [(name, p) for name, p in trainable(sp.module) if name in names and id(p) not in elsewhere]
    exactly = [(name, p) for name, p in named if name not in rounded]
    return _flat(sp, length, exactly) or list(
        _rounded(sp, length, [each for each in named if each[0] in rounded], rounded)
    )


def _flat(sp: BuiltModule, length: int, zero: list[tuple[str, nn.Parameter]]) -> list[Unlearned]:
    """Those whose gradient was exactly zero all the time."""
    if not zero:
        return []
    x = sp.input(length)
    stuck = _stuck(sp, x, zero)
    _, watch = watched_pass(sp, x, [])
    if stuck:
        reason = f"zero like the values, still after {NUM_STEPS} steps; moved off zero together they get another"
        found = [Unlearned((name,), watch.place_of(dict(zero)[name]), reason) for name in stuck]
        return _by_line(found, sp.module)
    influence, found = Influence(sp, x), []
    for name, parameter in zero[:MOST_TRIED]:
        if influence.of_large(parameter) and not influence.of(parameter):
            place = watch.birth_of_zeros(parameter)
            reason = f"zero in {NUM_STEPS} steps on other batches, while other values there change the output"
            found.append(Unlearned((name,), place if place.file else watch.place_of(parameter), reason))
    return _by_line(found, sp.module) or _by_line(list(_behind_zero(sp, x, zero)), sp.module)


def _stuck(sp: BuiltModule, x: Tensor, zero: list[tuple[str, nn.Parameter]]) -> list[str]:
    """Those that hold each other at zero, and do too where parts that are given zeros alone are given numbers."""
    if not freed_together(sp, x, zero):
        return []
    with with_zeros_filled(sp, x):
        comparable_pass(sp, x)
        return freed_together(sp, x, [(name, p) for name, p in zero if p.grad is not None and is_zero(p.grad)])


def _rounded(
    sp: BuiltModule, length: int, zero: list[tuple[str, nn.Parameter]], what: Mapping[str, str]
) -> list[Unlearned]:
    """Those whose gradient was nothing but rounding, where values other than those decide what comes out."""
    if not zero:
        return []
    x = sp.input(length)
    _, watch = watched_pass(sp, x, [])
    influence, found = Influence(sp, x), []
    for name, parameter in zero[:MOST_TRIED]:
        if influence.of_large(parameter, keeps_sign=True) and not influence.of(parameter):
            reason = "it shrinks with the precision, while other values there change the output"
            place = watch.birth_of_zeros(parameter)
            place = place if place.file else watch.place_of(parameter)
            found.append(Unlearned((name,), place, reason, f"rounding alone ({what[name]})"))
    return _by_line(found, sp.module)


def placed(place: Place, names: Sequence[str], module: nn.Module) -> Place:
    """The place, with the module that holds these parameters, and the line of its forward, where none is known."""
    if place.module_class and place.file:
        return place
    owners = [name.rpartition(".")[0] for name in names]
    path = owners[0]
    while not all(f"{owner}.".startswith(f"{path}.") for owner in owners) and path:
        path = path.rpartition(".")[0]
    holder = part_at(module, path)
    is_own = not type(holder).__module__.startswith("torch.")
    line = definition_place(holder) if is_own and not place.file else place
    return replace(line, module=path, module_class=type(holder).__name__)


def listed(names: Sequence[str]) -> str:
    """2 parameters (q.weight, k.weight)."""
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} parameter{'' if len(names) == 1 else 's'} ({shown})"


def _cut_off(sp: BuiltModule, x: Tensor, name: str, parameter: nn.Parameter, influence: Influence) -> Unlearned | None:
    """Why this parameter has no gradient, when that is a fault."""
    done, watch = watched_pass(sp, x, [parameter])
    outputs = [done.output, *done.others.values()]
    cuts = watch.cuts_before(outputs)
    if influence.of(parameter):
        cut = next(iter(cuts or watch.cuts), None)
        place = watch.place_of(parameter) if cut is None else cut.place
        return Unlearned((name,), place, _OWED + (f"; {cut.operation} cuts the way back" if cut else ""))
    if decision := next((cut for cut in cuts if cut.is_decision), None):
        if influence.of_large(parameter):
            reason = f"the way to the output leads through a comparison, which {decision.operation} makes a number"
            return Unlearned((name,), decision.place, reason)
        return None
    is_used = bool(watch.last_unread.file)
    is_unread = is_used and not watch.reaches([*outputs, *_kept(sp.module)])
    is_left_out = is_unread and not influence.of_large(parameter, times=_DECIDING)
    if is_left_out and all(_is_left_out(sp, parameter, length) for length in _LONGER):
        return _thrown_away(name, watch.place_of(parameter), watch.last_unread)
    return None


def _thrown_away(name: str, used: Place, last: Place) -> Unlearned:
    """What is computed from a parameter and read by nothing, at the line that makes the last of it."""
    reason = UNREACHED
    if (last.file, last.line) == (used.file, used.line):
        return Unlearned((name,), used, reason)
    return Unlearned((name,), last, f"{reason}; the last of it is made here, and read by nothing")


def _reached_by_kept_losses(module: nn.Module) -> set[int]:
    """Ids of the parameters that a scalar kept on a module, as a loss beside the output is, was computed from."""
    losses = (holder.tensor for holder in holders(module) if holder.tensor.numel() == 1 and holder.tensor.grad_fn)
    return {id(root) for loss in losses for root in roots_of(loss)}


def _is_left_out(sp: BuiltModule, parameter: nn.Parameter, length: int) -> bool:
    done, watch = watched_pass(sp, sp.input(min(length, sp.subject.max_length)), [parameter])
    return parameter.grad is None and not watch.reaches([done.output, *done.others.values(), *_kept(sp.module)])


def _kept(module: nn.Module) -> Iterator[Tensor]:
    """What modules keep for a later call."""
    yield from (holder.tensor for holder in attribute_tensors(module))
    yield from module.buffers()


def _behind_zero(sp: BuiltModule, x: Tensor, zero: Sequence[tuple[str, nn.Parameter]]) -> Iterator[Unlearned]:
    """Parameters whose gradient a plain tensor of zeros, which nothing will ever move, multiplies away."""
    for holder in attribute_tensors(sp.module):
        tensor = holder.tensor
        if tensor.requires_grad or not tensor.is_floating_point() or not tensor.numel() or bool((tensor != 0).any()):
            continue
        with torch.no_grad():
            tensor.add_(1)
        _, watch = watched_pass(sp, x, [])
        freed = [name for name, p in zero if p.grad is not None and not is_zero(p.grad)]
        with torch.no_grad():
            tensor.zero_()
        if freed:
            place = replace(
                watch.place_of(dict(zero)[freed[-1]]), module=holder.module, module_class=holder.module_class
            )
            reason = f"{holder.attribute}, a tensor of zeros that is neither parameter nor buffer, multiplies it away"
            yield Unlearned(tuple(freed), place, reason)


def _zero(sp: BuiltModule) -> list[tuple[str, nn.Parameter]]:
    """Trainable parameters whose gradient holds zeros alone."""
    return [(name, p) for name, p in trainable(sp.module) if p.grad is not None and is_zero(p.grad)]


def _descend(module: nn.Module) -> None:
    """A small step down the gradient, each value by a share of itself."""
    with torch.no_grad():
        for parameter in module.parameters():
            gradient = None if parameter.grad is None else parameter.grad.to_dense()
            if gradient is not None and bool(torch.isfinite(gradient).all()):
                parameter.add_(gradient.sign() * parameter.abs(), alpha=-LEARNING_RATE)


def _by_line(found: Sequence[Unlearned], module: nn.Module) -> list[Unlearned]:
    """One entry per line of source and reason, that with the most parameters first."""
    groups: dict[tuple[str, int, str], list[Unlearned]] = {}
    for item in found:
        groups.setdefault((item.place.file, item.place.line, "" if item.place.file else item.reason), []).append(item)
    merged = []
    for items in groups.values():
        names = tuple(dict.fromkeys(name for item in items for name in item.names))
        place = items[0].place
        merged.append(Unlearned(names, placed(place, names, module), items[0].reason, items[0].gradient))
    return sorted(merged, key=lambda item: -len(item.names))
