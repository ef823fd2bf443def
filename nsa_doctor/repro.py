"""The command line that repeats a measurement or a check."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsa_doctor.measurement import Point

if TYPE_CHECKING:
    from nsa_doctor.subject import Subject


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The words that name the subject, and a run's conditions; `dtype` is the one examined when none is given."""

    options: tuple[str, ...] = ()
    device: str = "cpu"
    seed: int = 0
    dtype: str = "float32"

    def of(self, point: Point) -> str:
        """One line to paste."""
        words = ["nsa-doctor", "sweep", "--seq", str(point.length), *self.options]
        words += ["--dtype", point.dtype] if point.dtype != self.dtype else []
        words += ["--values", point.values] if point.values != "normal" else []
        words += ["--device", self.device] if self.device != "cpu" else []
        return shlex.join([*words, "--seed", str(self.seed)])


def again(subject: "Subject", code: str) -> str:
    """The line to paste that runs one check on this subject again."""
    words = ["nsa-doctor", "run", "--select", code, *subject.options]
    if subject.lengths:
        words = ["nsa-doctor", "anomaly", "--seq", ",".join(map(str, subject.lengths)), *subject.options]
    words += ["--device", subject.device] if subject.device != "cpu" else []
    words += ["--profile", subject.profile] if subject.profile != "quick" and not subject.lengths else []
    return shlex.join([*words, "--seed", str(subject.seed)])
