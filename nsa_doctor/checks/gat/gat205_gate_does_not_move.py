"""GAT205 gate-does-not-move

Detects: a gate that is bit for bit the same in two checkpoints, though the module round it has changed.
Matters: it gets no gradient, or steps that rounding swallows: branches stay mixed as they were at the start.
Fix: look for a parameter group without the gate, a detach before it, or a learning rate too small for its dtype. A gate
    that is frozen on purpose is no illness.

Example:
    # faulty
    trained = [p for name, p in model.named_parameters() if "gate" not in name]
    optimizer = torch.optim.AdamW(trained)
    # correct
    optimizer = torch.optim.AdamW(model.parameters())
"""

from collections.abc import Iterator
from pathlib import Path

from nsa_doctor.artifacts.checkpoint.fault import quoted
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.checks._shared.of_checkpoint import finding, gates_of
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.checkpoints import healthy, holding

_OTHER = "layers.0.attn.out_proj.weight"


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    gates = gates_of(subject)
    compared = [(gate, gate.drift) for gate in gates if gate.drift is not None]
    if not compared:
        raise NotApplicableError("there is no earlier checkpoint with the same gates to compare with")
    still = [gate for gate, drift in compared if drift.relative == 0 and drift.others]
    if still:
        since = quoted(Path(compared[0][1].since).name)
        yield from finding(subject, still, f"is bit for bit the same as in {since}, though its module has changed", {})


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    shape, values = healthy()[_OTHER]
    return holding(subject, healthy(), {**healthy(), _OTHER: (shape, tuple(value + 0.1 for value in values))})


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="checkpoint", blocked_by=("CKP101", "CKP102"))
