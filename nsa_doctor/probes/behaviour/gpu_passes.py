"""Passes of a module that claims to lie on a GPU: forward, backward, decoding, and what a GPU would refuse in them."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.probes.attention.decoding import decode
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.hooks.tensor_owners import Holder, tensors_held
from nsa_doctor.probes.internal import backward_under_modes, recomputing_where
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.claimed_device import ClaimedDevices
from nsa_doctor.probes.model.deliberate import is_on_purpose
from nsa_doctor.probes.model.device_ledger import CPU, MixedDevicesError, RefusedError, Stray, memory_key
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.subject.contract import Subject

_ROWS = 2
_DECODED = (3, 1, 1)


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


def outputs_on(subject: Subject, devices: Sequence[torch.device], length: int) -> list[Tensor | Refusal]:
    """Per device the output [2, S, ...] of a fresh module that claims to lie there, or what stops that or a later pass.

    The later ones are a backward pass in training, and decoding where the subject offers it.
    """
    claims = ClaimedDevices(subject.packages)
    return [_passed(subject, claims, device, length) for device in devices]


def _passed(subject: Subject, claims: ClaimedDevices, device: torch.device, length: int) -> Tensor | Refusal:
    outputs = []
    for phase, mode, run in _passes(subject):
        sp = built(subject, mode=mode)
        x = sp.input(length, _ROWS)
        # Activation checkpointing compares devices where they claim nothing.
        with warnings.catch_warnings(), unobserved(), recomputing_where(lambda: False), claims.on(device):
            warnings.simplefilter("ignore")  # that this torch has no CUDA
            try:
                ask("moving to the device", lambda sp=sp: sp.module.to(device), sp.module)
                outputs.append(run(sp, x.to(device)))
            except SubjectFailedError as failure:
                return _refusal(sp, phase, device, failure)
    return outputs[0].detach().as_subclass(Tensor)


def _passes(subject: Subject) -> Iterator[tuple[str, Mode, Callable[[BuiltModule, Tensor], Tensor]]]:
    yield "forward", "eval", _forward
    yield "backward", "train", _backward
    if subject.prefill is not None and subject.step is not None:
        yield "decoding", "eval", lambda sp, x: decode(sp, x[:, : sum(_DECODED)], _DECODED).output


def _forward(sp: BuiltModule, x: Tensor) -> Tensor:
    with torch.no_grad():
        return sp.call(x)


def _backward(sp: BuiltModule, x: Tensor) -> Tensor:
    output = sp.call(x.requires_grad_(x.is_floating_point()))
    if output.requires_grad:
        loss = output.square().sum()
        ask("backward", lambda: backward_under_modes(loss), sp.module, output)
    return output


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
    line = line_that_makes(sp.module.get_submodule(holder.module), holder.attribute)
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
