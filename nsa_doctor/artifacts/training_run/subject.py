"""A training run as something to examine: what checks of runs are given."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.core.reproduce import reproduce


@dataclass(frozen=True, kw_only=True)
class RunSubject:
    """`record` is what the folder shows; `now`, in seconds since the epoch, is when it was read.

    `options` are the words that name the run, and how to read it, on the command line.
    """

    name: str
    record: RunRecord
    now: float
    options: tuple[str, ...] = ()

    @property
    def reproduce(self) -> str:
        """The line to paste that looks at it again."""
        return reproduce("watch", self.options)

    def recomputed(self, device: str) -> str:
        """The line to paste that computes steps of it again too."""
        return reproduce("watch", self.options, recompute=True, device=device)

    def with_beats(self, beats: Iterable[Beat]) -> Self:
        """The same run with other heartbeats."""
        return replace(self, record=replace(self.record, beats=tuple(beats)))
