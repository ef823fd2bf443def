"""CKP103 values-not-finite

Detects: NaN or infinities in a checkpoint's tensors, those of masks and of extremes that have seen nothing left out.
Matters: a model that goes on from it gives NaN from the first step; the run was lost before it was saved.
Fix: go back to the last checkpoint without, and find the step that made the first of them with nsa-doctor sweep.

Example:
    # faulty
    optimizer.step()  # one loss that is NaN makes every weight NaN
    torch.save(model.state_dict(), path)
    # correct
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss of step {step} is {loss.item()}")
    optimizer.step()
    torch.save(model.state_dict(), path)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.checkpoint.fault import quoted
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.checks._shared.of_checkpoint import readable
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import joined
from nsa_doctor.testing.checkpoints import GATE, filled, healthy, holding

_ITS_WEIGHT = f"{GATE}.fc2.weight"


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    reading = readable(subject)
    bad_gates = [gate for gate in reading.gates if "not finite" in gate.illnesses]
    if reading.not_finite:
        first = reading.not_finite[0]
        kinds = [f"{count:,} {kind}" for count, kind in ((first.num_nan, "NaN"), (first.num_inf, "inf")) if count]
        others = reading.num_not_finite - 1
        more = f", and {others} more tensor{'' if others == 1 else 's'} like it" if others else ""
        message = f"{joined(kinds)} of {first.num_values:,} values in {quoted(first.name)}{more}"
        where = first.name.rpartition(".")[0]
    elif bad_gates:
        message = f"{bad_gates[0].num_bad:,} parameters of the gate {quoted(bad_gates[0].layer)} are not finite"
        where = bad_gates[0].layer
    elif reading.unseen:
        raise NotComparableError(f"not all tensors of {subject.file} were looked at: {reading.unseen}")
    else:
        return
    yield Finding(
        message=f"{message}, in {subject.file}",
        where=Place(module=where),
        evidence={"checkpoint": subject.name, "tensors": max(1, reading.num_not_finite)},
        repro=subject.reproduce,
    )


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    values = list(healthy()[_ITS_WEIGHT][1])
    values[0] = float("nan")
    shape, _ = filled(3, 8)
    return holding(subject, {**healthy(), _ITS_WEIGHT: (shape, tuple(values))})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="checkpoint", profile="smoke", blocked_by=("CKP101", "CKP102")
)
