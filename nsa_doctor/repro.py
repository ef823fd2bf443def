"""The command line that repeats a measurement."""

import shlex
from dataclasses import dataclass

from nsa_doctor.measurement import Point


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
