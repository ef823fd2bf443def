"""What half precision does to positions, and to choices in a module of float32: FWD304's other question."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.autocast_regions import autocast_to
from nsa_doctor.probes.numerics.position_collisions import Merging, first_merging
from nsa_doctor.probes.numerics.rounded_choices import first_rounded_choice
from nsa_doctor.subject.contract import Subject

_HALF = torch.bfloat16
_LENGTH = 320  # whole numbers beyond 256 are not all bfloat16 numbers; a multiple of the usual block sizes
_LONG = 2112  # beyond 2,048 nor are they all float16 numbers
_LEAST = int(2 / torch.finfo(_HALF).eps) + 1


def merged(subject: Subject) -> Iterator[Finding | Note]:
    """The first decision that merged positions take in the subject as it is, or under autocast; else a note.

    Autocast is how a module of float32 is trained in half precision, and it leaves parameters and buffers alone; nobody
    has said that the whole of it will be converted, so what merges then is a note. What is examined in half precision
    is so converted. How far the output strays is not judged here: running sums of logarithms and long memories rightly
    keep to float32, while positions that merge are wrong however little it shows. So are choices by values that were
    rounded for nothing.
    """
    length = min(_LENGTH, subject.max_length)
    if subject.dtype == "float64":
        return
    sp = built(subject)
    if (
        subject.dtype == "float32"
        and (rounded := attempt(lambda: first_rounded_choice(sp, sp.input(length))))
        and not isinstance(rounded, Caught)
    ):
        yield _finding(subject, sp, f"{rounded.what}, at S={length}", rounded.place, "as it is", length)
        return
    if length < _LEAST:
        return
    for condition, asked, dtype in _ways(subject):
        try:
            sp = built(asked, dtype=dtype)
            found, is_in_float16 = first_merging(sp, sp.input(length))
            at = length
            if found is None and is_in_float16 and max(subject.max_length, subject.longest) >= _LONG:
                found, at = first_merging(sp, sp.input(_LONG))[0], _LONG
        except SubjectFailedError:  # it need not run that way
            continue
        if found is not None:
            yield _reported(subject, sp, at, condition, found)
            return


def _ways(subject: Subject) -> Iterator[tuple[str, Subject, str]]:
    yield "", subject, subject.dtype
    if subject.dtype != "float32":
        return
    device = torch.device(subject.device).type

    def under_autocast(module: nn.Module, x: Tensor) -> Tensor:
        with autocast_to(_HALF, device):
            output: Tensor = subject.forward(module, x)
            return output

    yield "under autocast to bfloat16, ", replace(subject, forward=under_autocast), subject.dtype
    yield "converted to bfloat16, ", subject, str(_HALF)[6:]


def _reported(subject: Subject, sp: BuiltModule, length: int, condition: str, found: Merging) -> Finding | Note:
    first = int(2 / torch.finfo(found.half).eps)
    message = (
        f"{condition}{found.what}, at S={length}: {str(found.half)[6:]} has not all whole numbers beyond {first:,}"
    )
    if sp.dtype != subject.dtype:
        return Note(message=message, where=_of_a_class(found.place, sp))
    return _finding(subject, sp, message, found.place, condition.rstrip(", ") or "as it is", length)


def _finding(subject: Subject, sp: BuiltModule, message: str, place: Place, way: str, length: int) -> Finding:
    evidence: dict[str, str | int] = {"length": length, "way": way}
    where = _of_a_class(place, sp)
    return Finding(message=message, where=where, evidence=evidence, repro=command_for(subject, "FWD304"))


def _of_a_class(place: Place, sp: BuiltModule) -> Place:
    return place if place.module_class else replace(place, module_class=type(sp.module).__name__)
