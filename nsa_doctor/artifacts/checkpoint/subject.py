"""A checkpoint as something to examine: what checks of checkpoints are given."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.artifacts.checkpoint.fault import quoted
from nsa_doctor.artifacts.checkpoint.record import Reading
from nsa_doctor.core.reproduce import reproduce


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
    def reproduce(self) -> str:
        """The line to paste that reads it again."""
        return reproduce("gate-stats", self.options)

    @property
    def file(self) -> str:
        """Its last name, for a sentence."""
        return quoted(Path(self.name).name or self.name)
