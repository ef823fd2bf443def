"""GAT202 gate-collapsed-in-checkpoint

Detects: a gate in a checkpoint that gives nearly everything to the same branch, whatever the input.
Matters: the other branches are computed for nothing, get next to no gradient, and what they should see is not seen.
Fix: lower the bias of the branch that takes all, or the learning rate of the gate; go back to a checkpoint before it.

Example:
    # faulty
    nn.init.constant_(gate.bias[:1], 10.0)  # softmax gives the first branch everything
    # correct
    nn.init.zeros_(gate.bias)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.checks._shared.of_checkpoint import finding, ill
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.checkpoints import GATE, healthy, holding


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    collapsed = ill(subject, "collapsed")
    if not collapsed:
        return
    probe = collapsed[0].probe
    assert probe is not None
    branch = probe.branches[probe.leader]
    what = f"gives branch {branch.name} {branch.mean:.1%} of the weight, and nearly all on {probe.led:.0%} of "
    what += f"{probe.num_inputs} inputs"
    yield from finding(subject, collapsed, what, {"branch": branch.name, "share": branch.mean})


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    return holding(subject, {**healthy(), f"{GATE}.fc2.bias": ((3,), (12.0, 0.0, 0.0))})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="checkpoint", profile="smoke", blocked_by=("CKP101", "CKP102")
)
