"""Finds the call at which a gradient goes wrong: all that comes after it is right, what goes into it is not."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.backward_lines import first_line, place_at_fault
from nsa_doctor.probes.gradients.derivative import Agreement, Slope
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe, Differential
from nsa_doctor.probes.gradients.local_gradients import Judged, judged, wrong_function
from nsa_doctor.probes.hooks.flow import Event
from nsa_doctor.probes.internal import memory_of, part_at, version_of

_ROUNDINGS = ("round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "heaviside")
_STEPS = (
    *_ROUNDINGS,
    *("int", "long", "bool", "one_hot", "scatter", "scatter_", "bernoulli", "multinomial"),
    *("argmax", "argmin", "topk", "gt", "ge", "lt", "le", "eq", "ne"),
)
_SUMS = ("add", "__add__", "__radd__")
_SEEDS = (0, 1, 2)
_MOST_ANCESTORS = 8
_ULPS = 64  # what adding up the same terms in another order costs, in units of the last place of their norm


@dataclass(frozen=True)
class Fault:
    """Where and how a gradient goes wrong; `reason` says why it may be so on purpose, if anything speaks for that."""

    place: Place
    what: str
    slope: Slope
    reason: str = ""


def find_fault(probe: DerivativeProbe) -> Fault | None:
    """The last tensor of the graph whose gradient is wrong, and who reads it; None when following does not show it."""
    try:
        differentials = [probe.differentiate(seed, is_followed=True) for seed in _SEEDS]
        number = _last_wrong(probe, differentials)
        if number is None:
            return _of_a_function(probe)
        slopes = [probe.slope(each, [number], is_followed=True) for each in differentials]
    except (SubjectFailedError, NotComparableError):  # it ran unfollowed, so that following it is what fails
        return _of_a_function(probe)
    slope = next((each for each in slopes if each.agreement is Agreement.DIFFERS), slopes[0])
    return _described(probe, differentials, number, slopes, slope)


def first_wrong_pass(probe: DerivativeProbe) -> tuple[Slope, str]:
    """The first of a new module's gradients that differs from the derivative, and words for any pass but the first."""
    passes = (probe.differentiate(seed) for seed in _SEEDS)
    slopes = [probe.slope(each, range(len(each.slopes))) for each in passes]
    wrong = [number for number, slope in enumerate(slopes) if slope.agreement is Agreement.DIFFERS]
    if not wrong:
        return slopes[0], ", in some passes alone"
    return slopes[wrong[0]], f", in pass {wrong[0] + 1} and not before it" if wrong[0] else ""


def _of_a_function(probe: DerivativeProbe) -> Fault | None:
    """A hand-written function that is wrong by itself, for a pass that cannot be followed (tokens are routed, say)."""
    try:
        found = wrong_function(probe.built, probe.x)
        if found is None:
            return None
        differential = probe.differentiate(_SEEDS[0])
        slope = probe.slope(differential, range(len(differential.slopes)))
    except (SubjectFailedError, NotComparableError):
        return None
    place = _line_of_backward(found, Place(module_class=type(probe.built.module).__name__))
    return Fault(place, f"the backward of {found.function.__name__}", slope)


def _described(
    probe: DerivativeProbe, differentials: Sequence[Differential], number: int, slopes: Sequence[Slope], slope: Slope
) -> Fault:
    """The fault at what reads tensor `number`, whose gradient is wrong while all later ones are right."""
    place, what, event = blame(probe, differentials[0], number)
    if event is None:
        return Fault(place, what, slope, _surrogate(differentials[0], slopes))
    return Fault(place, what, slope, _reason(probe, differentials, number, event, slopes))


def blame(probe: DerivativeProbe, found: Differential, number: int) -> tuple[Place, str, Event | None]:
    """The place, the words and the call for a gradient that is wrong at tensor `number` and right at all later ones."""
    event = _culprit(found, number)
    if event is None:
        return _owner(probe, found.recording.tensors[number]), "what becomes of it", None
    place, what = event.place, event.name
    if (hook := _hook(found, number, event)) is not None:
        what, (place, code) = f"{event.name}: a hook changes the gradient", hook
        if code is not None:
            place = replace(place, file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
    elif event.writes_hidden:
        what = f"{event.name}, which writes where autograd does not see it"
    elif event.loses_gradient:
        what = f"{event.name}, whose result carries no gradient"
    elif event.function is not None:
        place, what = _of_backward(probe, event)
    return _with_class(probe, place), what, event


def where_passes_part(probe: DerivativeProbe, found: Differential, calls: Sequence[Sequence[Any]]) -> tuple[Place, str]:
    """The first call of a pass that is another than in `calls` of one that should be equal; nowhere where all are."""
    own = calls_of(found)
    number = next((index for index, each in enumerate(zip(own, calls, strict=False)) if each[0] != each[1]), None)
    if number is None and len(own) != len(calls):
        number = min(len(own), len(calls))
    if number is None:
        return Place(), ""
    if len(own) < len(calls):  # what the other pass alone does
        return _with_class(probe, Place(**calls[number][1])), str(calls[number][0])
    event = found.recording.events[number]
    whole = (each for each in found.recording.events[number:] if each.function is event.inside is not None)
    event = next(whole, event)  # what is called inside of a hand-written function stands for it
    place, what = (event.place, event.name) if event.function is None else _of_backward(probe, event)
    return _with_class(probe, place), what


def calls_of(found: Differential) -> list[list[Any]]:
    """The calls of a pass that was followed, as plain values: name and place."""
    return [[event.name, asdict(event.place)] for event in found.recording.events]


def _of_backward(probe: DerivativeProbe, event: Event) -> tuple[Place, str]:
    assert event.function is not None
    place = _line_of_backward(judged(probe.built, probe.x, event.function), event.place)
    return place, f"the backward of {event.function.__name__}"


def _with_class(probe: DerivativeProbe, place: Place) -> Place:
    return place if place.module_class else replace(place, module_class=type(probe.built.module).__name__)


def last_differing(dtype: torch.dtype, first: Differential, slopes: Sequence[float]) -> int | None:
    """The last tensor of the graph whose slope is another than in the first pass, by more than rounding."""
    allowed = _ULPS * torch.finfo(dtype).eps
    numbers = range(min(len(first.slopes), len(slopes)) - 1, -1, -1)
    return next((i for i in numbers if not abs(first.slopes[i] - slopes[i]) <= allowed * first.sizes[i]), None)


def _last_wrong(probe: DerivativeProbe, differentials: Sequence[Differential]) -> int | None:
    count = min(len(each.slopes) for each in differentials)

    def is_wrong(first: int) -> bool:
        for each in differentials[:2]:
            agreement = probe.slope(each, range(first, count), is_followed=True).agreement
            if agreement is not Agreement.UNKNOWN:
                return agreement is Agreement.DIFFERS
        return False

    if not is_wrong(0):
        return None
    least, beyond = 0, count
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if is_wrong(middle) else (least, middle)
    return least


def _culprit(found: Differential, number: int) -> Event | None:
    """Of the calls that read the tensor: one that writes behind autograd's back, then one that loses the gradient."""
    readers = found.recording.readers(number)
    if hidden := found.recording.hidden_writes(number, readers):
        return hidden[0]
    ways = (
        lambda event: event.loses_gradient,
        lambda event: event.function is not None and not event.function.__module__.startswith("torch."),
        lambda event: bool(event.writes),
    )
    return next((event for way in ways for event in readers if way(event)), None)


def _reason(
    probe: DerivativeProbe, differentials: Sequence[Differential], number: int, event: Event, slopes: Sequence[Slope]
) -> str:
    """What speaks for a gradient that is meant to be other than the derivative; nothing when nothing does."""
    found = differentials[0]
    tensor = found.recording.tensors[number]
    if event.name == "embedding":
        return "an option of torch's embedding changes its gradient"
    if _keeps_value(found, tensor, number, event):
        return "the value passes unchanged, so that this is there to change the gradient"
    if event.loses_gradient and _is_added_back(found, event):
        return "with what it is added back to it is a constant, so that this is there to give that a gradient"
    if hard := _straight_through(probe, differentials, number, event, slopes):
        return f"the value goes through {hard}, whose derivative is zero: a straight-through estimate"
    if _is_torchs(probe, event.place):
        return "torch's own reparametrisation leaves that out"
    if event.loses_gradient and number == 0 and not tensor.is_leaf and _is_frozen(probe, event.place):
        return "every parameter there is frozen, and only the input misses a gradient"
    return ""


def _hook(found: Differential, number: int, event: Event) -> tuple[Place, CodeType | None] | None:
    """A hook of the subject on the tensor, or on what the culprit made of it: where it was put, and its code."""
    made = {id(output) for output in event.outputs}
    for index, tensor in enumerate(found.recording.tensors):
        if index == number or id(tensor) in made:
            for hook in found.hooks[index]:
                place = found.recording.hooked.get(id(tensor), event.place)
                return place, getattr(inspect.unwrap(hook), "__code__", None)
    return None


def _straight_through(
    probe: DerivativeProbe, differentials: Sequence[Differential], number: int, event: Event, slopes: Sequence[Slope]
) -> str:
    """The step function in or inside the culprit's module past which autograd leads what moves the output no more."""
    found = differentials[0]
    here = memory_of(found.recording.tensors[number])
    if event.function is not None:  # rounds in its own forward
        inside = [each for each in found.recording.events if each.inside is event.function and each.name in _STEPS]
        rounds = any(each.name in _ROUNDINGS for each in inside)
        return inside[0].name if inside and (rounds or all(map(_is_autograds_alone, slopes))) else ""
    for each in found.recording.events if event.loses_gradient else ():  # a rounded value that is added back detached
        if each.name in _ROUNDINGS and each.place.module == event.place.module and each.at <= event.at:
            written = [each.writes, *(after.writes for after in _downstream(found, each.at - 1, set(each.writes)))]
            if any(here in writes for writes in written):
                return each.name
    tried = 0
    for index in range(number, -1, -1) if event.loses_gradient else ():
        reach = {memory_of(found.recording.tensors[index])}
        after = list(_downstream(found, index, reach))
        hard = [each for each in after if each.name in _STEPS and _is_within(each.place.module, event.place.module)]
        if not hard or not found.slopes[index] or (here not in reach and index != number):
            continue
        if all(_is_autograds_alone(probe.slope(each, [index], is_followed=True)) for each in differentials):
            return hard[0].name
        tried += 1
        if tried == _MOST_ANCESTORS:
            break
    return ""


def _surrogate(found: Differential, slopes: Sequence[Slope]) -> str:
    """The hand-written function whose output is a step, where what leads to it is hidden (compiled, say)."""
    if not all(map(_is_autograds_alone, slopes)):
        return ""
    calls = [event for event in found.recording.events if event.function is not None]
    hard = next((each for each in calls if any(map(_is_a_step, each.outputs))), None)
    return "" if hard is None else f"{hard.name} gives steps, whose derivative is zero: a surrogate gradient"


def _is_a_step(values: Tensor) -> bool:
    return values.numel() > 1 and bool(((values == 0) | (values.abs() == 1)).all())


def _is_within(path: str, outer: str) -> bool:
    return f"{path}.".startswith(f"{outer}." if outer else "")


def _is_autograds_alone(slope: Slope) -> bool:
    """Whether autograd sees a slope where the value hardly moves."""
    return abs(slope.numeric) <= abs(slope.autograd) / 4


def _downstream(found: Differential, number: int, reach: set[int]) -> Iterator[Event]:
    """The calls that what lies in that memory goes through, in order; `reach` grows by what they write."""
    for event in found.recording.events:
        sources = {memory_of(source) for source in event.outputs} if event.function is not None else set()
        if event.at > number and (event.reads | sources) & reach:
            reach |= event.writes
            yield event


def _keeps_value(found: Differential, tensor: Tensor, number: int, event: Event) -> bool:
    """Whether the culprit, or the calls after it in its module, hand the very values on, with a gradient."""
    if event.writes_hidden:
        return False
    if event.function is not None and any(_is_handed_on(found, output, event) for output in event.outputs):
        return True
    reach = set(event.writes)
    later = [each for each in _downstream(found, number, reach) if each.place.module == event.place.module]
    outputs = [output for each in (event, *later) for output in each.outputs if output.requires_grad]
    return any(_equal(output, tensor) for output in outputs if memory_of(output) != memory_of(tensor))


def _is_added_back(found: Differential, event: Event) -> bool:
    """Whether a sum in the culprit's module, of what it made and of what has a gradient, is one value throughout."""
    later = [each for each in _downstream(found, event.at - 1, set(event.writes)) if each.name in _SUMS]
    outputs = [output for each in later if each.place.module == event.place.module for output in each.outputs]
    return any(output.requires_grad and _is_constant(output.detach()) for output in outputs)


def _is_constant(values: Tensor) -> bool:
    if values.numel() < 2 or not values.is_floating_point():
        return False
    close = 4 * torch.finfo(values.dtype).eps * float(values.abs().max())
    return close > 0 and float(values.max() - values.min()) <= close


def _is_handed_on(found: Differential, output: Tensor, event: Event) -> bool:
    """Whether a function's output is the memory of an input that it has not written to."""
    before = found.recording.tensors[: event.at]
    return version_of(output) == 0 and any(memory_of(output) == memory_of(tensor) for tensor in before)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two have the same values, in one shape or another."""
    if one.numel() != other.numel() or one.dtype != other.dtype:
        return False
    close = 4 * torch.finfo(one.dtype).eps
    return bool(torch.allclose(one.detach().flatten(), other.detach().flatten(), rtol=close, atol=0))


def _is_torchs(probe: DerivativeProbe, place: Place) -> bool:
    """Whether a module of torch.nn.utils runs there: spectral norm leaves its power iteration out of the graph."""
    kind = type(part_at(probe.built.module, place.module))
    return kind.__module__.startswith("torch.nn.utils")


def _is_frozen(probe: DerivativeProbe, place: Place) -> bool:
    module = part_at(probe.built.module, place.module)
    held = list(module.parameters()) if place.module else []
    return bool(held) and not any(parameter.requires_grad for parameter in held)


def _owner(probe: DerivativeProbe, tensor: Tensor) -> Place:
    """The module that holds the parameter, or the subject itself."""
    root = probe.built.module
    for path, module in root.named_modules():
        if any(parameter is tensor for parameter in module.parameters(recurse=False)):
            return Place(module=path, module_class=type(module).__name__)
    return Place(module_class=type(root).__name__)


def _line_of_backward(found: Judged, place: Place) -> Place:
    line = place_at_fault(found.function, found.wrong, found.right)
    if line is None:
        return first_line(found.function, place)
    return replace(place, file=line.file, line=line.line, function=line.function)
