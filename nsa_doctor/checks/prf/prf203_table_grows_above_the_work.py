"""PRF203 table-grows-above-the-work

Detects: a mask or another table, the same whatever the input is, that takes memory with the square of the length where
all work on the input grows with little more than the length itself: a window, a scan, a recurrence.
Matters: a mask of every pair of 65,536 tokens takes 4 GB, in a layer that is there because it takes no such thing.
Fix: make the part that is read, as the mask of one block, and broadcast it.

Example:
    # faulty
    mask = (position[:, None] >= position)[start:end, start - window : end]  # of all pairs, to be cut from
    # correct
    mask = position[start:end, None] >= position[start - window : end]
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.growth import doubling, ladder
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_bytes
from nsa_doctor.probes.cost.table_growth import Oversized, Tables, oversized, tables
from nsa_doctor.subject.contract import Subject

_LONGEST, _NUM_LENGTHS = 768, 6  # no power of two: tables that are kept by length are made again
_MOST_BYTES, _MOST_OPERATIONS = 1 << 30, 20_000
_FAR = 65_536


def run(subject: Subject) -> Iterator[Finding]:
    lengths = doubling(min(subject.max_length, _LONGEST), _NUM_LENGTHS)
    passes = ladder(lengths, lambda length: tables(subject, length), _costs)
    if len(passes) < 3:
        raise NotComparableError(f"memory was measured at {len(passes)} lengths only, and three are needed")
    if (found := oversized(passes, min(subject.max_length, _FAR))) is not None:
        yield _finding(subject, passes, found)


def _finding(subject: Subject, passes: list[Tables], found: Oversized) -> Finding:
    last = passes[-1]
    sizes = ", ".join(f"{short_bytes(each.bytes.get(found.place, 0))} at S={each.length}" for each in passes[-3:])
    far = last.bytes[found.place] * (_FAR / last.length) ** 2
    return Finding(
        message=f"a table that does not depend on the input takes memory here with the power {found.exponent:.2f} of "
        f"the length ({sizes}; {short_bytes(round(far))} at S={_FAR:,}), where work on the input grows with the power "
        f"{found.work_exponent:.2f} at most",
        where=found.place,
        evidence={
            "exponent": found.exponent,
            "work_exponent": found.work_exponent,
            "length": last.length,
            "bytes": last.bytes[found.place],
            "peak_bytes": last.peak_bytes,
        },
        repro=command_for(subject, "PRF203"),
    )


def planted(subject: Subject) -> Subject:
    def cuts_from_all_pairs(module: nn.Module, x: Tensor) -> Tensor:
        position = torch.arange(x.shape[1], device=x.device)
        own = (position[:, None] >= position)[:, :1]
        hidden = x.float() if x.is_floating_point() else x[..., None].float()
        return (hidden.cumsum(1) * own)[..., :1].expand(*x.shape[:2], subject.width).to(getattr(torch, subject.dtype))

    return replace(subject, forward=cuts_from_all_pairs)


def _costs(tables: Tables) -> list[tuple[float, float]]:
    return [(tables.peak_bytes, _MOST_BYTES), (tables.num_operations, _MOST_OPERATIONS)]


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "HNG101"),
    explained_by=("PRF201", "PRF101"),
)
