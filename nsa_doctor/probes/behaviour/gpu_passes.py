"""Passes of a module that claims to lie on a GPU: forward, backward, decoding, and what a GPU would refuse in them."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.probes.attention.decoding import decode
from nsa_doctor.probes.gradients.askings import (
    Asking,
    Gradients,
    described,
    differing,
    gradients,
    module_at_fault,
)
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.lines_apart import at_own_line
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.hooks.tensor_owners import Holder, tensors_held
from nsa_doctor.probes.internal import backward_under_modes, part_at, recomputing_where
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.claimed_device import ClaimedDevices
from nsa_doctor.probes.model.deliberate import is_on_purpose
from nsa_doctor.probes.model.device_ledger import CPU, MixedDevicesError, RefusedError, Stray, memory_key
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.compare import departure
from nsa_doctor.subject.contract import Subject

_ROWS = 3  # of two, a mix-up in two layers of a model undoes itself
_DECODED = (3, 1, 1)
_INPUT = "the input"
_OUTPUTS = {"forward": "the output", "decoding": "the output of decoding"}
_ROUNDINGS = 2.0**10
_NAMES_A_DEVICE = re.compile(r"cuda|device|driver|gpu", re.IGNORECASE)  # as of one that is not there


@dataclass(frozen=True)
class Refusal:
    """What stopped a pass on a claimed device; `origin` says in words where a tensor of another device came from.

    It `is_certain` where a GPU would refuse it for sure: a line made the tensor without naming a device, it hangs on
    the module and `.to()` leaves it behind, its values are asked for on the host, or a statement of its own raises.
    """

    phase: str
    device: torch.device
    failure: SubjectFailedError
    place: Place
    origin: str = ""
    is_certain: bool = False

    @property
    def is_of_devices(self) -> bool:
        """Whether it is about where tensors lie."""
        return isinstance(self.failure.caught.error, (MixedDevicesError, RefusedError))


@dataclass
class Passed:
    """What passes of a fresh module that claims to lie on a device gave: outputs [3, S, ...] by phase, and gradients.

    The phases are "forward" and, where the subject offers it, "decoding"; the gradients are of a pass in training.
    """

    device: torch.device
    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: Gradients = field(default_factory=Gradients)


@dataclass(frozen=True)
class Difference:
    """What differs between passes on two devices, how, and the module that gives it of what does not ("" the root)."""

    what: str
    text: str
    module: str = ""


def difference(result: Passed, expected: Passed, eps: float) -> Difference | None:
    """The first that is farther apart than some thousand roundings of this size."""
    for phase, output in expected.outputs.items():
        floor = _ROUNDINGS * eps * output.abs().amax().expand(output.shape[:2])
        if (found := departure(result.outputs[phase], output, floor)) is not None:
            return Difference(_OUTPUTS[phase], found.text)
    one, other = result.gradients, expected.gradients
    if names := differing(one, other, eps):
        return Difference("the gradient", described(one, other, names), module_at_fault(one, other, names, eps))
    return None


def passes_on(subject: Subject, devices: Sequence[torch.device], length: int) -> list[Passed | Refusal]:
    """What the passes give on each of these devices in turn, or what stops the first of them that does not return.

    That of the CPU claims nothing.
    """
    claims = ClaimedDevices(subject.packages)
    regions = (nullcontext if device == CPU else partial(claims.on, device) for device in devices)
    return [_passed(subject, region, device, length) for region, device in zip(regions, devices, strict=True)]


def of_one_device(subject: Subject, refusal: Refusal, other: torch.device, length: int) -> Refusal:
    """What one device refuses and the other does not, at the line that differs: certain unless it speaks of devices.

    What mixes devices is left as it is.
    """
    if refusal.is_of_devices:
        return refusal
    is_certain = refusal.is_certain or not _NAMES_A_DEVICE.search(str(refusal.failure))
    ways = (partial(passes_on, subject, [device], length) for device in (refusal.device, other))
    place = at_own_line(subject, built(subject).module, refusal.place, *ways)
    return replace(refusal, is_certain=is_certain, place=place)


def _passed(
    subject: Subject, region: Callable[[], AbstractContextManager[None]], device: torch.device, length: int
) -> Passed | Refusal:
    passed = Passed(device)
    for phase, mode, run in _passes(subject):
        sp = built(subject, mode=mode)
        x = sp.input(length, _ROWS)
        # Activation checkpointing compares devices where they claim nothing.
        with warnings.catch_warnings(), unobserved(), recomputing_where(lambda: False), region():
            warnings.simplefilter("ignore")  # that this torch has no CUDA
            try:
                ask("moving to the device", lambda sp=sp: sp.module.to(device), sp.module)
                run(sp, x.to(device), passed)
            except SubjectFailedError as failure:
                return _refusal(sp, phase, device, failure)
    return passed


def _passes(subject: Subject) -> Iterator[tuple[str, Mode, Callable[[BuiltModule, Tensor, Passed], None]]]:
    yield "forward", "eval", _forward
    yield "backward", "train", _backward
    if subject.prefill is not None and subject.step is not None:
        yield "decoding", "eval", _decoding


def _forward(sp: BuiltModule, x: Tensor, passed: Passed) -> None:
    with torch.no_grad():
        passed.outputs["forward"] = sp.call(x).as_subclass(Tensor)


def _backward(sp: BuiltModule, x: Tensor, passed: Passed) -> None:
    leaf = x.detach().clone().requires_grad_(x.is_floating_point())
    cotangent = make_cotangent(passed.outputs["forward"], sp.subject.seed)
    found = gradients(sp, leaf, cotangent, Asking("on a GPU", given=lambda x: x, backward=_along))
    if found is not None:
        own = {} if leaf.grad is None else {_INPUT: leaf.grad}
        passed.gradients = replace(found, parameters=found.parameters | own)


def _along(output: Tensor, cotangent: Tensor) -> None:
    if output.requires_grad:
        backward_under_modes(output, cotangent)


def _decoding(sp: BuiltModule, x: Tensor, passed: Passed) -> None:
    passed.outputs["decoding"] = decode(sp, x[:, : sum(_DECODED)], _DECODED).output.as_subclass(Tensor)


def _refusal(sp: BuiltModule, phase: str, device: torch.device, failure: SubjectFailedError) -> Refusal:
    refusal = Refusal(phase, device, failure, trouble_of(failure, sp.subject.packages).place)
    error = failure.caught.error
    if isinstance(error, MixedDevicesError):
        return _traced(refusal, error.stray, sp)
    is_certain = isinstance(error, RefusedError) or is_on_purpose(failure, sp.subject.packages)
    return replace(refusal, is_certain=is_certain)


def _traced(refusal: Refusal, stray: Stray, sp: BuiltModule) -> Refusal:
    """The refusal with where its tensor on another device came from, at the line to mend."""
    made, other = stray.record.made, f"the tensor on {stray.record.device}"
    if made is not None:
        is_named = stray.record.is_asked_for
        return replace(
            refusal,
            origin=f"{other} is made in {made.function} with {'that' if is_named else 'no'} device named",
            place=replace(refusal.place, file=made.file, line=made.line, function=made.function),
            # A name that was chosen by what is there when the code is imported would be another beside a GPU.
            is_certain=not (is_named and stray.record.device == CPU),
        )
    key, moved = stray.record.source, {id(each) for each in sp.module.buffers()}
    held = (each for each in tensors_held(sp.module) if id(each.tensor) not in moved)
    holder = next((each for each in held if key and memory_key(each.tensor) == key), None)
    if holder is not None:
        origin = f"{other} is {holder.way} of {holder.module_class}, no parameter and no buffer, so .to() leaves it"
        return replace(refusal, origin=origin, place=_place_of(holder, sp, refusal.place), is_certain=True)
    if key and (name := _name_in_modules(key, sp)):
        return replace(refusal, origin=f"{other} is {name}", is_certain=True)
    return refusal


def _place_of(holder: Holder, sp: BuiltModule, place: Place) -> Place:
    """Where the attribute is made; the place where it is used where no line is seen to."""
    place = replace(place, module=holder.module, module_class=holder.module_class)
    line = line_that_makes(part_at(sp.module, holder.module), holder.attribute)
    return place if line is None else replace(place, file=line.file, line=line.line, function=line.function)


def _name_in_modules(key: int, sp: BuiltModule) -> str:
    """The variable of the subject's classes or modules of Python that holds the memory; empty where none does."""
    for kind in {each for part in sp.module.modules() for each in type(part).__mro__}:
        for name, value in list(vars(kind).items()):
            if isinstance(value, Tensor) and memory_key(value) == key:
                return f"{kind.__name__}.{name}"
    frames = FrameFilter(sp.subject.packages)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or frames.rank(file) != 3:
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and memory_key(value) == key:
                return f"{module.__name__}.{name}"
    return ""
