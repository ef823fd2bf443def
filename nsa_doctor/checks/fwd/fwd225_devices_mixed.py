"""FWD225 devices-mixed

Detects: what a GPU would refuse, seen without one on tensors that claim to lie there: a forward, a backward or decoding
that mixes devices (a tensor made without `device=`, one that `.to()` leaves on the CPU, a device named in the code), or
whose output or gradients depend on the number of the GPU, or are others there than on a CPU.
Matters: every test on a CPU passes, and the first call on the machine that is paid for raises, or goes wrong on all of
its GPUs but the first.
Fix: make tensors on the device of the input (`device=x.device`), and register those that a module keeps as buffers.

Example:
    # faulty
    self.slopes = alibi_slopes(heads)
    mask = torch.ones(S, S, dtype=torch.bool).triu(1)
    # correct
    self.register_buffer("slopes", alibi_slopes(heads), persistent=False)
    mask = torch.ones(S, S, dtype=torch.bool, device=x.device).triu(1)
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.gpu_passes import Passed, Refusal, difference, of_one_device, passes_on
from nsa_doctor.probes.hooks.lines_apart import at_line_apart
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.device_ledger import CPU
from nsa_doctor.subject.contract import Subject

_LENGTH, _LENGTH_OF_SLOW = 67, 7
_KINDS = ("cuda", "xpu")  # another kind where code asks CUDA itself
_COARSE = 2.0**-15  # what a GPU computes in bfloat16, and a CPU does not, is some hundred times as coarse


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.device != "cpu":
        raise NotApplicableError("it is examined where it lies; devices are claimed on a CPU alone")
    length = min(_LENGTH_OF_SLOW if subject.is_slow else _LENGTH, subject.max_length)
    refused = None
    for kind in _KINDS:
        devices = [torch.device(kind, index) for index in (0, 1)]
        first, second = passes_on(subject, devices, length)
        if isinstance(first, Refusal) and not first.is_of_devices:
            refused = refused or first
        elif isinstance(first, Refusal):
            yield _refused(subject, first, length)
            return
        elif isinstance(second, Refusal):
            alone = of_one_device(subject, second, devices[0], length)
            yield _refused(subject, alone, length, elsewhere="; on the first GPU it does not")
            return
        else:
            eps = torch.finfo(first.outputs["forward"].dtype).eps
            yield from _differing(subject, length, second, first, eps)
            (here,) = passes_on(subject, [CPU], length)
            if isinstance(here, Passed):
                yield from _differing(subject, length, first, here, max(eps, _COARSE))
            return
    if refused is not None:
        message = f"what it does on a GPU cannot be followed without one: {refused.failure.caught.sentence}"
        yield Note(message=message, where=refused.place)


def _differing(subject: Subject, length: int, result: Passed, expected: Passed, eps: float) -> Iterator[Finding]:
    """The finding of what differs on one device from another on which two passes do not differ."""
    found = difference(result, expected, eps)
    if found is None:
        return
    (again,) = passes_on(subject, [expected.device], length)
    if isinstance(again, Refusal) or difference(again, expected, eps) is not None:
        return
    module = built(subject).module
    place = replace(definition_place(part_at(module, found.module)), module=found.module)
    ways = (partial(passes_on, subject, [each.device], length) for each in (result, expected))
    there, here = ("a GPU", "the CPU") if expected.device == CPU else ("a second GPU", "the first")
    yield Finding(
        message=f"{found.what} on {there} differs from that on {here}, at S={length}: {found.text}",
        where=at_line_apart(subject, place, *ways),
        evidence={"length": length, "what": found.what, "device": str(result.device)},
        repro=command_for(subject, "FWD225"),
    )


def _refused(subject: Subject, refusal: Refusal, length: int, elsewhere: str = "") -> Finding | Note:
    sentence = refusal.failure.caught.sentence.partition(": ")[2]
    origin = f"; {refusal.origin}" if refusal.origin else ""
    raised = f"at S={length} with module and input on {refusal.device}, {refusal.phase} raises"
    message = f"{raised}: {sentence}{origin}{elsewhere}"
    if not refusal.is_certain:
        return Note(message=message, where=refusal.place)
    return Finding(
        message=f"device mismatch {message}" if refusal.is_of_devices else message,
        where=refusal.place,
        evidence={"length": length, "phase": refusal.phase, "device": str(refusal.device)},
        repro=command_for(subject, "FWD225"),
    )


def planted(subject: Subject) -> Subject:
    def made_without_a_device(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output + torch.zeros(output.shape[1:])

    return replace(subject, forward=made_without_a_device)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"), priority=448)
