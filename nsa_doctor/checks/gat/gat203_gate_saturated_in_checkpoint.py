"""GAT203 gate-saturated-in-checkpoint

Detects: a gate in a checkpoint that is decided for nearly every ordinary input: its slope is nearly zero.
Matters: it cannot learn any more: the gradient through it is lost in rounding.
Fix: go back to a checkpoint before it, lower the gate's learning rate, scale its logits or raise the temperature.

Example:
    # faulty
    nn.init.normal_(gate.weight, std=10.0)  # sigmoid is flat on nearly every input
    # correct
    nn.init.normal_(gate.weight, std=0.02)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.checks._shared.of_checkpoint import finding, ill
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.checkpoints import GATE, healthy, holding

_STEEP = 1e5


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    saturated = ill(subject, "saturated")
    if saturated:
        probe = saturated[0].probe
        assert probe is not None
        what = f"is saturated: {probe.flat:.0%} of its weights on {probe.num_inputs} standard normal inputs are flat"
        yield from finding(subject, saturated, what, {"flat": probe.flat, "entropy": probe.entropy})


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    shape, values = healthy()[f"{GATE}.fc2.weight"]
    return holding(subject, {**healthy(), f"{GATE}.fc2.weight": (shape, tuple(_STEEP * value for value in values))})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="checkpoint", profile="smoke", blocked_by=("CKP101", "CKP102")
)
