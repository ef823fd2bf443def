"""SEL113 spans-disagree

Detects: functions between slots, token ranges, masks and counts that give other tokens than plain sets give, refuse
what is valid, or take what is not.
Matters: what is masked, cached, counted or reported is then another choice than the one that is attended to.
Fix: look at the function named, with the least input that shows it; first and last blocks and empty rows go wrong most.

Example:
    # faulty
    is_read[slots] = True  # -1 marks an empty slot, and here the last block
    # correct
    is_read[slots[slots >= 0]] = True
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from nsa_doctor.core.check import Check, Profile
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.fuzz.cases import case_lines, read_case
from nsa_doctor.fuzz.outcome import FuzzOutcome
from nsa_doctor.subject.contract import Subject

_EXAMPLES: dict[Profile, int] = {"smoke": 60, "quick": 200, "full": 1000}


def run(subject: Subject) -> Iterator[Finding]:
    from nsa_doctor.fuzz import strategies
    from nsa_doctor.fuzz.properties.examine import examine
    from nsa_doctor.fuzz.search import Search

    def tried(case: dict[str, Any]) -> FuzzOutcome:
        return examine(read_case(json.dumps(case)), subject)

    search = Search()
    search.run(
        strategies.of("ranges", {}, is_builtin=False),
        tried,
        examples=_EXAMPLES[subject.profile],
        number=subject.seed,
        until=math.inf,
        listen=lambda search: None,
    )
    if search.failure is not None and search.case is not None:
        yield Finding(
            message=search.failure.message,
            where=search.failure.where,
            evidence={
                "property": search.failure.property,
                "input": "; ".join(case_lines(read_case(json.dumps(search.case)))),
            },
            repro=command_for(subject, "SEL113"),
        )


def planted(subject: Subject) -> Subject:
    assert subject.spans is not None
    spans = subject.spans()

    def faulty(mask: Tensor, num_ranges: int) -> Tensor:
        """Forgets that a run may go on to the last token."""
        ranges: Tensor = spans.mask_to_ranges(mask, num_ranges)
        return ranges.clamp(max=mask.shape[-1] - 1)

    functions = {name: getattr(spans, name) for name in dir(spans) if not name.startswith("_")}
    return replace(subject, spans=lambda: SimpleNamespace(**functions | {"mask_to_ranges": faulty}))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("spans",),
    fuzzed=("spans disagree", "valid refused", "invalid accepted"),
)
