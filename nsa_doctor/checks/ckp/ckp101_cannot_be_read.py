"""CKP101 cannot-be-read

Detects: a checkpoint that is missing, empty, cut short, of another kind, contradicts itself or fails its checksum.
Matters: what was trained is lost with it, and a loader that is lenient goes on with whatever is left.
Fix: copy it again and compare sizes; where the original is as bad, go back to an earlier one, and save to another name
     that is moved in place when it is whole.

Example:
    # faulty
    torch.save(model.state_dict(), "model.pt")  # killed half-way, it leaves a part, and the old file is gone
    # correct
    torch.save(model.state_dict(), "model.pt.part")
    os.replace("model.pt.part", "model.pt")
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.checkpoint.fault import OPEN
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.checkpoints import consisting_of, healthy, safetensors

_LOST_BYTES = 7


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    reading = subject.checkpoint()
    if reading.fault in (*OPEN, "unsafe"):
        raise NotComparableError(reading.sentence)
    if reading.fault is not None:
        evidence = {"checkpoint": subject.name, "kind": reading.fault}
        yield Finding(message=reading.sentence, evidence=evidence, repro=subject.reproduce)


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    return consisting_of(subject, safetensors(healthy())[:-_LOST_BYTES], "safetensors")


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="checkpoint", profile="smoke", blocked_by=("CKP102",))
