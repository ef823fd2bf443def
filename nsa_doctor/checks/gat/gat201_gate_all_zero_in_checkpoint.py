"""GAT201 gate-all-zero-in-checkpoint

Detects: a gate in a checkpoint whose last layer is exactly zero, weight and bias: the same weights whatever the input.
Matters: all branches are averaged alike. In a checkpoint of a trained model it has not moved since it was born.
Fix: start the weight small and random (a standard deviation of 0.02, say); a bias of zero is fine. See GAT105 where it
    does not move.

Example:
    # faulty
    nn.init.zeros_(self.gate.weight)
    nn.init.zeros_(self.gate.bias)
    # correct
    nn.init.normal_(self.gate.weight, std=0.02)
    nn.init.zeros_(self.gate.bias)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.checks._shared.of_checkpoint import finding, ill
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.checkpoints import GATE, filled, healthy, holding


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    zero = ill(subject, "zero-initialised")
    if not zero:
        return
    first = zero[0]
    parts = "weight and bias" if first.bias is not None else "weight, and there is no bias,"
    what = f"is zero-initialised: its last layer's {parts} are exactly zero"
    if first.probe is not None:
        what += f", so that every branch gets {first.probe.branches[0].mean:.3g} whatever the input"
    yield from finding(subject, zero, what, {})


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    return holding(subject, {**healthy(), f"{GATE}.fc2.weight": filled(3, 8)})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="checkpoint", profile="smoke", blocked_by=("CKP101", "CKP102")
)
