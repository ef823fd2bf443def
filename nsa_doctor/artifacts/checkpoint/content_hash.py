"""Which file exactly: a hash of its bytes, that a verdict is bound to."""

import hashlib
from collections.abc import Sequence

from nsa_doctor.artifacts.checkpoint.limits import Deadline
from nsa_doctor.artifacts.checkpoint.source import Source
from nsa_doctor.artifacts.checkpoint.values import CHUNK_BYTES


def digest(files: Sequence[Source], deadline: Deadline) -> str:
    """The SHA-256 of one file, as `sha256sum` prints it; of several the SHA-256 of theirs, one after the other.

    Empty when the time is up before the end.
    """
    found = [_digest(file, deadline) for file in files]
    if "" in found or len(found) == 1:
        return found[0] if len(found) == 1 else ""
    return hashlib.sha256("".join(found).encode()).hexdigest()


def _digest(file: Source, deadline: Deadline) -> str:
    made, place = hashlib.sha256(), 0
    while place < file.num_bytes:
        if deadline.is_over:
            return ""
        data = file.read(place, min(CHUNK_BYTES, file.num_bytes - place))
        made.update(data)
        place += len(data)
    return made.hexdigest()
