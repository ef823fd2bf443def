"""FWD225 devices-mixed

Detects: what a GPU would refuse, seen without one on tensors that claim to lie there: a forward, a backward or decoding
that mixes devices (a tensor made without `device=`, one that `.to()` leaves on the CPU, a device named in the code), or
whose output depends on the number of the GPU.
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

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.gpu_passes import Refusal, outputs_on
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.numerics.compare import departure
from nsa_doctor.subject.contract import Subject

_LENGTH, _LENGTH_OF_SLOW = 67, 7
_KINDS = ("cuda", "xpu")  # another kind where code asks CUDA itself
_ROUNDINGS = 2.0**10  # two passes on one CPU


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.device != "cpu":
        raise NotApplicableError("it is examined where it lies; devices are claimed on a CPU alone")
    length = min(_LENGTH_OF_SLOW if subject.is_slow else _LENGTH, subject.max_length)
    refused = None
    for kind in _KINDS:
        first, second = outputs_on(subject, [torch.device(kind, index) for index in (0, 1)], length)
        if isinstance(first, Refusal) and not first.is_of_devices:
            refused = refused or first
            continue
        yield from _judge(subject, first, second, length)
        return
    if refused is not None:
        message = f"what it does on a GPU cannot be followed without one: {refused.failure.caught.sentence}"
        yield Note(message=message, where=refused.place)


def _judge(
    subject: Subject, first: Tensor | Refusal, second: Tensor | Refusal, length: int
) -> Iterator[Finding | Note]:
    refusal = first if isinstance(first, Refusal) else second
    if isinstance(refusal, Refusal):
        yield _refused(subject, refusal, length, on_second_alone=refusal is second)
    elif isinstance(first, Tensor) and isinstance(second, Tensor):
        floor = _ROUNDINGS * torch.finfo(first.dtype).eps * first.abs().amax().expand(first.shape[:2])
        if (found := departure(second, first, floor)) is not None:
            yield Finding(
                message=f"the output on a second GPU differs from that on the first, at S={length}: {found.text}",
                where=definition_place(built(subject).module),
                evidence={"length": length, "error": found.error, "floor": found.floor},
                repro=command_for(subject, "FWD225"),
            )


def _refused(subject: Subject, refusal: Refusal, length: int, *, on_second_alone: bool) -> Finding | Note:
    sentence = refusal.failure.caught.sentence.partition(": ")[2]
    origin = f"; {refusal.origin}" if refusal.origin else ""
    elsewhere = "; on the first GPU it does not" if on_second_alone else ""
    message = f"with module and input on {refusal.device}, {refusal.phase} raises: {sentence}{origin}{elsewhere}"
    if not refusal.is_certain:
        return Note(message=message, where=refusal.place)
    return Finding(
        message=f"device mismatch at S={length}: {message}",
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
