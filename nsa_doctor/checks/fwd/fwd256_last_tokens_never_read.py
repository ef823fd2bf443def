"""FWD256 last-tokens-never-read

Detects: a subject of one answer for a row, such as a pooled state, that is the same whatever the last tokens are, at
lengths that end within a block, though tokens at those places count in a longer sequence. The last few that a strided
convolution or pooling leaves over are none.
Matters: up to a block of what it is given has no part in the answer; at lengths of whole blocks nothing shows.
Fix: let the loop over blocks run to the end, `range(0, S, block)`, and fill the last block up or cut it short.

Example:
    # faulty
    for i in range(S // block):
        total = total + self.attend(x[:, i * block : (i + 1) * block])
    # correct
    for i in range(0, S, block):
        total = total + self.attend(x[:, i : i + block])
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.blind_output import line_of_loss
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTHS = (31, 127, 255, 511)  # one less than whole blocks of every usual size, or as good as two of any other
_SHARE, _FEWEST = 8, 8  # one token in so many, and so many at least: patches of a few leave some over


def run(subject: Subject) -> Iterator[Finding]:
    if subject.answer is None or subject.answer[1][:1] == ("S",):
        raise NotApplicableError("it has an answer for each token")
    sp = comparable_module(subject)
    for length in _LENGTHS:
        longer = 2 * (length + 1)
        fewest = max(length // _SHARE, _FEWEST, _stride(sp.module))
        if longer > subject.max_length or fewest >= length or (subject.is_slow and length > _LENGTHS[1]):
            return
        if _reads(sp, length, length - fewest) or not _reads(sp, longer, length - fewest, length):
            continue
        counts = range(fewest, length + 1)
        most = next((count - 1 for count in counts if _reads(sp, length, length - count)), length)
        if most == length:
            continue  # where nothing at all counts is another fault
        operation, place = line_of_loss(sp, _pair(sp, length, length - most, length))
        lost = f"; they are lost in {operation}" if operation else ""
        yield Finding(
            message=(
                f"the answer for {length} tokens is the same whatever the last {most} are, though at S={longer} tokens "
                f"at their places change it{lost}"
            ),
            where=in_subject(place, sp.module),
            evidence={"length": length, "tokens": most},
            repro=command_for(subject, "FWD256"),
        )
        return


def _reads(sp: BuiltModule, length: int, first: int, end: int | None = None) -> bool:
    """Whether other tokens there change the answer."""
    with torch.no_grad():
        one, other = (sp(each) for each in _pair(sp, length, first, end or length))
    return not torch.equal(one, other)


def _pair(sp: BuiltModule, length: int, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Two inputs that differ in these tokens alone."""
    x, other = sp.input(length, 2), sp.input(length, 2, seed=sp.subject.seed + 31).clone()
    other[:, :first], other[:, end:] = x[:, :first], x[:, end:]
    return x, other


def _stride(module: nn.Module) -> int:
    """By how much all of torch's convolutions and poolings shorten a sequence."""
    parts = [part for part in module.modules() if type(part).__module__.startswith("torch.nn.modules.")]
    strides = [getattr(part, "stride", 1) for part in parts]
    first = [each[-1] if isinstance(each, tuple) and each else each for each in strides]
    return math.prod(each for each in first if isinstance(each, int) and each > 1)


def planted(subject: Subject) -> Subject:
    def reads_whole_blocks(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x[:, : max(1, x.shape[1] // 32 * 32)])
        return output.mean(1, keepdim=True).expand(-1, x.shape[1], -1)

    return replace(subject, forward=reads_whole_blocks, answer=("", (subject.width,)))


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"), explained_by=("FWD251",)
)
