"""FWD209 unwritten-memory-read

Detects: an output that changes with what memory held before `torch.empty`, or another call like it, handed it out.
Matters: results depend on what ran before, NaN at some lengths only; offsets for a kernel stop the GPU with an illegal
memory access.
Fix: write all of the buffer at the line named before it is read, or ask for `torch.zeros`.

Example:
    # faulty
    offsets = torch.empty(B + 1, dtype=torch.int32)  # only offsets[1:] is written below
    # correct
    offsets = torch.zeros(B + 1, dtype=torch.int32)
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.unwritten import Filled
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_MODES: tuple[Mode, ...] = ("eval", "train")


def run(subject: Subject) -> Iterator[Finding]:
    for mode in _MODES:
        if mode not in subject.modes:
            continue
        for length in odd_lengths(subject)[:2]:
            plain, asked = _output(subject, length, mode, lambda place: False)
            if isinstance(plain, SubjectFailedError):
                raise NotComparableError(f"the subject raises at S={length}: {plain}")
            again_plain, _ = _output(subject, length, mode, lambda place: False)
            if _differs(again_plain, plain):
                raise NotComparableError(f"two runs at S={length} differ, whatever memory holds")
            for place in asked:
                changed, _ = _output(subject, length, mode, lambda other, place=place: other == place)
                if _differs(changed, plain):
                    yield _finding(subject, place, length, mode, changed, plain)
                    return


def _output(
    subject: Subject, length: int, mode: Mode, is_chosen: Callable[[Place], bool]
) -> tuple[Tensor | SubjectFailedError, list[Place]]:
    """The output of a module built and called with that memory filled, and where unwritten memory was asked for."""
    filled = Filled(Places(FrameFilter(subject.packages)), is_chosen)
    with torch.no_grad(), filled.filling():
        examined = built(subject, mode=mode, is_randomised=False)
        x = examined.input(length, 2)
        try:
            return examined(x), list(filled.asked)
        except SubjectFailedError as failure:
            return failure, list(filled.asked)


def _differs(output: Tensor | SubjectFailedError, plain: Tensor | SubjectFailedError) -> bool:
    if isinstance(output, SubjectFailedError) or isinstance(plain, SubjectFailedError):
        return True
    return not torch.equal(torch.where(isfinite(output), output, 0), torch.where(isfinite(plain), plain, 0))


def _finding(
    subject: Subject, place: Place, length: int, mode: Mode, changed: Tensor | SubjectFailedError, plain: object
) -> Finding:
    assert isinstance(plain, Tensor)
    effect = f"raises {changed}" if isinstance(changed, SubjectFailedError) else ""
    if isinstance(changed, Tensor):
        effect = f"changes {int((changed != plain).any(-1).sum())} of {plain.shape[0] * length} tokens"
    return Finding(
        message=f"what memory held before it was handed out here {effect} of the output at B=2, S={length} ({mode})",
        where=place,
        evidence={"length": length, "mode": mode},
        repro=command_for(subject, "FWD209"),
    )


def planted(subject: Subject) -> Subject:
    def forgets_the_last_row(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        kept = torch.empty_like(output)
        kept[:, :-1] = output[:, :-1]
        return kept

    return replace(subject, forward=forgets_the_last_row)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD206",))
