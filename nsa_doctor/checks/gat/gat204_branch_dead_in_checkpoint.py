"""GAT204 branch-dead-in-checkpoint

Detects: a branch whose gate in a checkpoint gives it almost no weight on every ordinary input.
Matters: the branch is computed and thrown away, gets no gradient, and what it should see is not seen.
Fix: look at the gate's bias and at the order of the branches; go back to a checkpoint before it.

Example:
    # faulty
    nn.init.constant_(gate.bias[2:], -20.0)  # the last branch is off on every input
    # correct
    nn.init.zeros_(gate.bias)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.checks._shared.of_checkpoint import finding, ill
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.text import joined
from nsa_doctor.testing.checkpoints import GATE, healthy, holding


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    shut = ill(subject, "dead branch")
    if not shut:
        return
    probe = shut[0].probe
    assert probe is not None
    dead = [probe.branches[index] for index in probe.dead]
    names = joined([branch.name for branch in dead])
    most = max(branch.most for branch in dead)
    what = f"shuts branch {names}: at most {most:.1e} on {probe.num_inputs} standard normal inputs"
    yield from finding(subject, shut, what, {"branch": names, "most": most})


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    return holding(subject, {**healthy(), f"{GATE}.fc2.bias": ((3,), (0.0, 0.0, -20.0))})


CHECK = Check(
    doc=__doc__, run=run, planted=planted, examines="checkpoint", profile="smoke", blocked_by=("CKP101", "CKP102")
)
