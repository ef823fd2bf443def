"""FWD306 packed-differs-from-separate

Detects: sequences packed into one row, or into several, that give other results than each by itself.
Matters: documents read each other, or positions and blocks are counted from the wrong start.
Fix: every mask, position, block and window restarts where a sequence does.

Example:
    # faulty
    positions = torch.arange(num_tokens)  # goes on from one sequence to the next
    # correct
    starts = offsets[:-1].repeat_interleave(offsets.diff())
    positions = torch.arange(num_tokens) - starts
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.packed_rows import lengths_to_pack, misread_in_one_row, misread_in_rows
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    parts = [sp.input(size, seed=subject.seed + index) for index, size in enumerate(lengths_to_pack(subject))]
    eps = finest_precision(sp, max(parts, key=lambda part: part.shape[1])).eps
    found = next(chain(misread_in_one_row(sp, parts, eps), misread_in_rows(sp, eps)), None)
    if found is None:
        return
    worst = found.worst
    yield Finding(
        message=f"{found.which} differs by {worst.error:.2e} from itself alone, where rounding explains "
        f"{worst.bound:.2e}, at {worst.num_tokens} of {found.length} tokens, most at {worst.token}",
        where=found.place,
        evidence={
            "lengths": str([part.shape[1] for part in parts]),
            "sequence": found.number,
            "token": worst.token,
            "error": worst.error,
        },
        repro=command_for(subject, "FWD306"),
    )


def planted(subject: Subject) -> Subject:
    packed = subject.packed
    assert packed is not None

    def reads_the_first_sequence_in_the_last(module: nn.Module, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        output = packed(module, x, cu_seqlens)
        return torch.cat((output[:, :-1], output[:, -1:] + output[:, :1]), dim=1)

    return replace(subject, packed=reads_the_first_sequence_in_the_last)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("packed",), profile="smoke", blocked_by=("NAN101", "FWD206")
)
