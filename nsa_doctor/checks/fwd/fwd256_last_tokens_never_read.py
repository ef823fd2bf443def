"""FWD256 last-tokens-never-read

Detects: a subject of one answer for a row, such as a pooled state, that is the same whatever the last tokens are, an
eighth of them at least, at lengths that end within a block, though the first one counts, and tokens at those places do
in a longer sequence. What a strided convolution, a pooling or an unfolding leaves over is none.
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

import re
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

_LENGTHS = (31, 127, 255, 511)  # one less than whole blocks of every usual size
_SHARE, _FEWEST, _SEEDS = 8, 8, 2  # one token in so many, and so many at least: patches of a few leave some over
_LEAVING = re.compile("pool|conv|unfold|im2col|stft")


def run(subject: Subject) -> Iterator[Finding]:
    if subject.answer is None or subject.answer[1][:1] == ("S",):
        raise NotApplicableError("it has an answer for each token")
    sp = comparable_module(subject)
    for length in _LENGTHS:
        longer, fewest = 2 * (length + 1), max(length // _SHARE, _FEWEST)
        if longer > subject.max_length or (subject.is_slow and length > _LENGTHS[1]):
            return
        if _reads(sp, length, length - fewest) or not _reads(sp, longer, length - fewest, length):
            continue
        if not _reads(sp, length, 0, 1):
            continue  # it looks at a part of the sequence, or at nothing
        most = _most(sp, length, fewest)
        operation, place = line_of_loss(sp, _pair(sp, length, length - most, length))
        if _LEAVING.search(operation):
            return
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


def _most(sp: BuiltModule, length: int, least: int) -> int:
    """How many of the last change nothing: more than so many do."""
    most = length
    while least + 1 < most:
        middle = (least + most) // 2
        least, most = (least, middle) if _reads(sp, length, length - middle) else (middle, most)
    return least


def _reads(sp: BuiltModule, length: int, first: int, end: int | None = None) -> bool:
    """Whether other tokens there change the answer, with one input or another."""
    with torch.no_grad():
        pairs = (_pair(sp, length, first, end or length, seed) for seed in range(_SEEDS))
        return any(not torch.equal(*map(sp, pair)) for pair in pairs)


def _pair(sp: BuiltModule, length: int, first: int, end: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two inputs that differ in these tokens alone."""
    x, other = (sp.input(length, 2, seed=sp.subject.seed + 31 * each + seed).clone() for each in range(2))
    other[:, :first], other[:, end:] = x[:, :first], x[:, end:]
    return x, other


def planted(subject: Subject) -> Subject:
    def reads_whole_blocks(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x[:, : max(1, x.shape[1] // 32 * 32)])
        return output.mean(1, keepdim=True).expand(-1, x.shape[1], -1)

    return replace(subject, forward=reads_whole_blocks, answer=("", (subject.width,)))


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"), explained_by=("FWD251",)
)
