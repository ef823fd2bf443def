"""Measures a subject at one point, and says what it did when there is nothing to count."""

import warnings
from dataclasses import replace

import torch

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import GRADIENTS, OTHERS, OUTPUT, Measurement, Place, Point, Trouble, TroubleKind
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.perform import Conditions, look_at_branches, perform
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.wrong_shape import place_of_wrong_shape
from nsa_doctor.probes.tensors.finite import census, joint_census
from nsa_doctor.subject.contract import Subject, WrongOutputError

_LONGEST_TRACEBACK = 8000


def measure(subject: Subject, point: Point, conditions: Conditions) -> Measurement:
    """Run the subject once and count what came out; an exception of its own becomes a Trouble."""
    with preserved_state() as changes, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            measurement = _measure(subject, point, conditions)
        except SubjectFailedError as failure:
            trouble = trouble_of(failure, subject.packages)
            if failure.phase == "backward" and trouble.kind == "raised":
                trouble = replace(trouble, place=_place_in_backward(subject, point, conditions, trouble.place))
            counted = () if failure.output is None else (census(OUTPUT, failure.output),)
            measurement = Measurement(point=point, censuses=counted, trouble=trouble)
    changed = (f"the subject changes the {name}" for name in changes.seen)
    return replace(measurement, notes=(*measurement.notes, *changed))


def trouble_of(failure: SubjectFailedError, packages: tuple[str, ...]) -> Trouble:
    """What a subject's exception says, and where in its code it came from."""
    error, module = failure.caught.error, failure.module
    places = Places(FrameFilter(packages))
    if module is not None:
        places.know(module)
    place = places.of_traceback(error.__traceback__)
    kind: TroubleKind = "raised"
    message = failure.caught.sentence
    if isinstance(error, WrongOutputError):
        kind, message = "wrong_shape", str(error)
        if module is not None:
            made_at = place_of_wrong_shape(error, module)
            place = made_at if made_at.file else definition_place(module)
    elif is_out_of_memory(error):
        kind = "out_of_memory"
    elif error_kind(message) is TorchError.ONE_VALUE_PER_CHANNEL:  # of a batch of one token
        kind = "not_measured"
    if failure.phase == "build" and (called_at := places.caller_of_traceback(error.__traceback__)).file:
        message += f" (called at {called_at.short_line})"
    if not place.module_text and module is not None:
        place = replace(place, module_class=type(module).__name__)
    traceback = failure.caught.traceback[-_LONGEST_TRACEBACK:]
    return Trouble(kind=kind, message=message, phase=failure.phase, place=place, traceback=traceback)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the device or on the host."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and error_kind(str(error)) is TorchError.HOST_MEMORY
    )


def _measure(subject: Subject, point: Point, conditions: Conditions) -> Measurement:
    performance = perform(subject, point, conditions)
    counted = [census(OUTPUT, performance.output)]
    if performance.others:
        counted.append(joint_census(OTHERS, performance.others))
    if performance.gradients:
        counted.append(joint_census(GRADIENTS, performance.gradients))
    inner = look_at_branches(subject, point, conditions, performance)
    width, given = performance.output.shape[2], subject.width
    is_other = subject.input == "embeddings" and width != given
    return Measurement(
        point=point,
        censuses=(*(census(name, values) for name, values in inner.items()), *counted),
        seconds=performance.seconds,
        peak_bytes=performance.peak_bytes,
        notes=(f"its output has {width} channels, its input {given}",) if is_other else (),
    )


def _place_in_backward(subject: Subject, point: Point, conditions: Conditions, known: Place) -> Place:
    """The module, and unless a line is `known` already the line, whose backward raises: found by a traced pass."""
    tracer = Tracer(Places(FrameFilter(subject.packages)))
    try:
        perform(subject, point, conditions, tracer)
    except SubjectFailedError:
        found = tracer.running()
        if found is None:
            return known
        return replace(known, module=found.module, module_class=found.module_class) if known.file else found
    return known
