"""CKP102 unsafe-to-load

Detects: a checkpoint that has a loader run code, or that is built to harm who opens it: a pickle that asks for more
    than weights need, calls that take all memory or all time (`bytearray(2**40)`), hidden archives, names that lead out
    of a folder, entries that unpack to far more than they are.
Matters: who loads it runs what its author wrote, with all rights of the job that loads it, or waits for ever.
Fix: do not load it; get it from a source you trust. Of your own checkpoints save the state_dict alone, best as
    safetensors, and load with weights_only=True.

Example:
    # faulty
    torch.save(model, "model.pt")  # a pickle of the module: to load it is to run what it names
    model = torch.load("model.pt", weights_only=False)
    # correct
    safetensors.torch.save_file(model.state_dict(), "model.safetensors")
    model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
"""

import io
import zipfile
from collections.abc import Iterator

from nsa_doctor.artifacts.checkpoint.fault import OPEN
from nsa_doctor.artifacts.checkpoint.subject import CheckpointSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.checkpoints import consisting_of

_CALLS_PRINT = b"\x80\x02cbuiltins\nprint\nX\x02\x00\x00\x00hi\x85R."


def run(subject: CheckpointSubject) -> Iterator[Finding]:
    reading = subject.checkpoint()
    if reading.fault in OPEN:
        raise NotComparableError(reading.sentence)
    if reading.fault == "unsafe":
        yield Finding(message=reading.sentence, evidence={"checkpoint": subject.name}, repro=subject.reproduce)


def planted(subject: CheckpointSubject) -> CheckpointSubject:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", _CALLS_PRINT)
    return consisting_of(subject, content.getvalue(), "pt")


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="checkpoint", profile="smoke", priority=100)
