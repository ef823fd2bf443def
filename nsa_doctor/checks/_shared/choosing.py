"""What checks of choices do: look at every query's choice, and tell of the first that is at fault, and of how many."""

from collections.abc import Callable, Iterator

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.choice import Choice, Row, choices
from nsa_doctor.subject.contract import Subject

Fault = Callable[[Row], str | None]


def faults(subject: Subject, code: str, fault: Fault, found: list[Choice] | None = None) -> Iterator[Finding]:
    """At most one finding; `fault` says what is wrong with one query's choice, or None."""
    for choice in choices(subject) if found is None else found:
        faulty = [(row, text) for row in choice.rows() if (text := fault(row)) is not None]
        if not faulty:
            continue
        (row, text), total = faulty[0], choice.entries.shape[0] * choice.entries.shape[1] * choice.entries.shape[2]
        yield Finding(
            message=f"{len(faulty)} of {total} choices {text} ({row})",
            where=choice.place(),
            evidence={
                "choices": len(faulty),
                "of": total,
                "token": row.t,
                "group": row.group,
                "seen in": choice.source,
            },
            repro=command_for(subject, code),
        )
        return
