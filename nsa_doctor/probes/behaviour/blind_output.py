"""Where a module stops depending on its input: the operation that makes one value of whatever it is given."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.detached_params import PathWatch
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.hooks.recording import Operation, Recording
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.probes.numerics.paired_operations import aligned
from nsa_doctor.probes.tensors.operations import OVERWRITING

_NUM_INPUTS, _LOUD = 3, 16.0
_ROUNDINGS = 64.0


def is_blind(sp: BuiltModule, length: int) -> bool:
    """Whether other inputs, and loud ones, give one output but for rounding, which is not zero and nothing drawn."""
    inputs = unlike_inputs(sp, length)
    inputs += [_LOUD * each for each in inputs[1:] if each.is_floating_point()]
    if any(torch.equal(each, inputs[0]) for each in inputs[1:]):
        return False  # as the one id of a vocabulary
    seed_everything(sp.subject.seed)  # as each call begins
    generators = Generators()
    with torch.no_grad():
        outputs = [sp(each).clone() for each in inputs]
    is_one = all(_are_equal([each], [outputs[0]]) for each in outputs[1:])
    return is_one and bool((outputs[0] != 0).any()) and not generators.drawn_from()


def is_led_on(sp: BuiltModule, length: int) -> bool:
    """Whether something computed from the input flows into the output; what makes a table computes nothing from it."""
    x = sp.input(length)
    watch = PathWatch(FrameFilter(sp.subject.packages), [x])
    with torch.enable_grad(), preserved_state(), watch.watching():
        return watch.reaches([sp.call(x)])


def line_of_loss(sp: BuiltModule, inputs: Sequence[Tensor]) -> tuple[str, Place]:
    """The last operation towards the output of two inputs that is given other values and gives the same, and its line.

    No operation, and the line of the module, where none is seen.
    """
    return loss_between(sp, [lambda each=each: sp(each) for each in inputs])


def loss_between(sp: BuiltModule, calls: Sequence[Callable[[], Tensor]]) -> tuple[str, Place]:
    """The same of two calls that give the same."""
    one, other = (recording_of(sp, call) for call in calls)
    found = _last_that_gives_the_same(one, other)
    if found is None or not found.place.file:
        return "", definition_place(sp.module)
    return found.name, found.place


def blind_channels(sp: BuiltModule, length: int) -> list[int]:
    """Channels of the input [B, S, D] that change no output: by its gradient, and by other values, loud ones too."""
    x = sp.input(length, batch=2)
    if not x.is_floating_point():
        return []
    gradient = attempt(lambda: _gradient(sp, x.clone().requires_grad_()))
    still = (gradient == 0).all(0).all(0).nonzero().flatten().tolist() if isinstance(gradient, Tensor) else []
    if not still or len(still) == x.shape[-1]:
        return []
    others = [_with_others(sp, length, still, each) for each in range(1, _NUM_INPUTS)]
    for value in (0.0, 1.0):  # of flags
        others.insert(0, x.clone())
        others[0][..., still] = value
    generators = Generators()
    with torch.no_grad():
        outputs = [sp(each).clone() for each in (x, *others, _LOUD * others[-1] - (_LOUD - 1) * x)]
    is_one = all(torch.equal(each, outputs[0]) for each in outputs[1:])
    return still if is_one and not generators.drawn_from() else []


def _gradient(sp: BuiltModule, x: Tensor) -> Tensor | None:
    seed_everything(sp.subject.seed)
    with torch.enable_grad(), preserved_state():
        loss = sp.call(x).double().square().sum()
        return torch.autograd.grad(loss, x, allow_unused=True)[0]


def call_that_drops(sp: BuiltModule, length: int, channels: Sequence[int]) -> nn.Module | None:
    """The first part that is given what comes of these channels alone, other values, and gives the same."""
    x, other = sp.input(length, batch=2), _with_others(sp, length, channels, 1)
    rest = [channel for channel in range(x.shape[-1]) if channel not in channels]
    inputs = (x, other, _with_others(sp, length, rest, 1))
    recorded = [recording_of(sp, lambda each=each: sp(each)).calls for each in inputs]
    for call, again, beside in zip(*recorded, strict=False):
        is_same = call.module is again.module is beside.module and call.module is not sp.module and bool(call.outputs)
        if not is_same or _are_equal(call.inputs, again.inputs) or not _are_equal(call.inputs, beside.inputs):
            continue
        if _are_equal(call.outputs, again.outputs):
            return call.module
    return None


def _with_others(sp: BuiltModule, length: int, channels: Sequence[int], number: int) -> Tensor:
    """The input with other values in these channels."""
    x, other = (sp.input(length, batch=2, seed=sp.subject.seed + 31 * each).clone() for each in (0, number))
    x[..., channels] = other[..., channels]
    return x


def unlike_inputs(sp: BuiltModule, length: int) -> list[Tensor]:
    """Inputs of two rows that have nothing in common."""
    return [sp.input(length, batch=2, seed=sp.subject.seed + 31 * each) for each in range(_NUM_INPUTS)]


def _last_that_gives_the_same(one: Recording, other: Recording) -> Operation | None:
    pairs = {i: other.operations[j] for i, j in aligned(one.operations, other.operations)}
    waiting, seen = [one.output_maker], set[int]()
    while waiting:
        number = max(waiting)
        waiting.remove(number)
        if number < 0 or number in seen or number not in pairs:
            continue
        seen.add(number)
        operation = one.operations[number]
        if not _are_equal(operation.results, pairs[number].results):
            continue
        if not _are_equal(_counting(operation), _counting(pairs[number])):
            return operation
        waiting += operation.makers
    return None


def _counting(operation: Operation) -> list[Tensor]:
    """What it is given and depends on: of memory that it overwrites the values do not count."""
    given = [each for _, each in operation.read]
    return given[1:] if operation.name in OVERWRITING else given


def _are_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """But for rounding, where they are no whole numbers."""
    return len(some) == len(others) and all(map(_is_equal, some, others))


def _is_equal(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point() or one.shape != other.shape or not one.numel():
        return torch.equal(one, other)
    return bool((one - other).abs().max() <= _ROUNDINGS * torch.finfo(one.dtype).eps * one.abs().max())
