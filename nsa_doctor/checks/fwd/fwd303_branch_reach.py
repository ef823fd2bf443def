"""FWD303 branch-reach

Detects: a branch that reads a key it may not, or cannot reach one it may: compressed blocks beyond those complete,
tokens outside the window, tokens of blocks not chosen or later than the query. Of other attention, one token more or
fewer than the module's own `sliding_window`; one more than what is called `window` is a note: it may not count itself.
Matters: one token too many is a leak of the future, one too few is a hole in the past; loss curves show neither.
Fix: write the range down for one query: blocks that end at or before t, tokens t-w+1 to t, tokens up to t of a block.

Example:
    # faulty
    window = k[:, max(0, t - w) : t + 1]  # w + 1 tokens
    # correct
    window = k[:, max(0, t - w + 1) : t + 1]
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.attention.reach import Reach, alone, inside, outside
from nsa_doctor.probes.attention.windows import declared_windows, other_windows, place_of
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.geometry is None and declared_windows(sp := comparable_module(subject)):
        yield from _other_windows(sp)
        return
    rules = rules_of(subject)
    useful = ("attend", "anatomy", "branches")
    offered = [seam for seam in useful if subject.offers(seam)]
    if not offered:
        raise NotApplicableError(offers_no(useful))
    reported: set[str] = set()
    measured = [*alone(subject, rules), *(inside if subject.anatomy is not None else outside)(subject, rules)]
    for reach in measured:
        wrong = set(reach.read) ^ set(reach.due)
        if wrong and reach.branch not in reported:
            reported.add(reach.branch)
            yield _finding(subject, reach)


def _other_windows(sp: BuiltModule) -> Iterator[Finding | Note]:
    found = next(iter(other_windows(sp)), None)
    if found is None:
        return
    message = f"attention sees {found.seen} tokens, the query's own among them, and {found.name} is {found.declared}"
    if found.is_wrong:
        evidence = {"window": found.declared, "seen": found.seen}
        repro = command_for(sp.subject, "FWD303")
        yield Finding(message=message, where=place_of(sp, found), evidence=evidence, repro=repro)
    else:
        yield Note(message=f"{message}, which may not count it", where=found.place)


def _finding(subject: Subject, reach: Reach) -> Finding:
    extra, missing = sorted(set(reach.read) - set(reach.due)), sorted(set(reach.due) - set(reach.read))
    parts = [f"reads {_listed(extra)}, which it may not" if extra else ""]
    parts += [f"does not reach {_listed(missing)}" if missing else ""]
    return Finding(
        message=f"{reach.branch}: {reach.query} of S={reach.length} {' and '.join(part for part in parts if part)} "
        f"({reach.what}; it may read {_listed(reach.due)})",
        where=reach.place(),
        evidence={"length": reach.length, "too many": len(extra), "too few": len(missing)},
        repro=command_for(subject, "FWD303"),
    )


def _listed(numbers: Sequence[int]) -> str:
    """Numbers as ranges, few of them."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = [str(start) if start == end else f"{start} to {end}" for start, end in spans]
    return ", ".join(text[:4]) + (", ..." if len(text) > 4 else "") if text else "nothing"


def planted(subject: Subject) -> Subject:
    attend = subject.attend
    assert attend is not None

    def faulty(q: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> Tensor:
        return attend(q, k, v, slots) + torch.cat((v[:, 1:], v[:, :1]), dim=1).mean((1, 2), keepdim=True)

    return replace(subject, attend=faulty)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("NAN101", "SEL101", "SEL102"),
    fuzzed=("reads other keys",),
    unless=("bidirectional",),
)
