"""What checks of checkpoints have in common: a file that could be read, and gates that have one illness."""

from collections.abc import Iterator, Sequence

from nsa_doctor.artifacts.checkpoint.record import GateRecord, Illness, Reading
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.measurement import Place


def readable(subject: CheckpointSubject) -> Reading:
    """What was read; raises NotComparableError where nothing was."""
    reading = subject.checkpoint()
    if reading.fault is not None:
        raise NotComparableError(reading.sentence)
    return reading


def gates_of(subject: CheckpointSubject) -> tuple[GateRecord, ...]:
    """The file's gates; raises NotComparableError where there are none."""
    reading = readable(subject)
    if not reading.gates:
        near = f"; names that come near: {', '.join(reading.similar)}" if reading.similar else ""
        raise NotComparableError(f"no gate was found in {subject.file}{near}; --pattern says what gates are called")
    return reading.gates


def ill(subject: CheckpointSubject, illness: Illness) -> list[GateRecord]:
    """Gates whose gravest illness this is; raises NotComparableError where none has it and some are not known."""
    gates = gates_of(subject)
    found = [gate for gate in gates if gate.illnesses[:1] == (illness,)]
    unknown = [gate for gate in gates if gate.unprobed and not gate.illnesses]
    if not found and unknown:
        more = f", nor {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise NotComparableError(f"{unknown[0].layer} was not tried out{more}: {unknown[0].unprobed}")
    return found


def finding(
    subject: CheckpointSubject, gates: Sequence[GateRecord], what: str, evidence: dict[str, Scalar]
) -> Iterator[Finding]:
    """One finding for all of them, at the first; `what` is said of it."""
    first, others = gates[0], len(gates) - 1
    more = f"; so {'is' if others == 1 else 'are'} {others} more" if others else ""
    yield Finding(
        message=f"{first.layer} {what}{more} in {subject.file}",
        where=Place(module=first.layer),
        evidence={"checkpoint": subject.name, "gates": len(gates), **evidence},
        repro=subject.reproduce,
    )
