"""A checkpoint as something to examine: what checks of checkpoints are given."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.artifacts.checkpoint.fault import quoted
from nsa_doctor.artifacts.checkpoint.reader import ReadRequest, read_checkpoint
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.core.reproduce import arguments, reproduce


@dataclass(frozen=True, kw_only=True)
class CheckpointSubject:
    """`checkpoint` gives what was read of it; `options` are the words that name it, and how, on the command line."""

    name: str
    checkpoint: Callable[[], Reading]
    options: tuple[str, ...] = ()

    def offers(self, seam: str) -> bool:
        """Whether the seam is there."""
        return seam == "checkpoint"

    @property
    def again(self) -> str:
        """The line to paste that reads it again."""
        return reproduce("gate-stats", self.options)

    @property
    def file(self) -> str:
        """Its last name, for a sentence."""
        return quoted(Path(self.name).name or self.name)


def checkpoint_subject(path: str, request: ReadRequest, words: tuple[str, ...] = ()) -> CheckpointSubject:
    """The file or folder at that path, read once, when it is first asked for."""
    known: list[Reading] = []

    def checkpoint() -> Reading:
        if not known:
            known.append(read_checkpoint(path, request))
        return known[0]

    return CheckpointSubject(name=path, checkpoint=checkpoint, options=words or arguments((path,)))
