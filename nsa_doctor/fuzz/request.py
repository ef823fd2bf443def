"""What to fuzz, and for how long."""

from dataclasses import dataclass
from pathlib import Path

from nsa_doctor.core.examination_request import ExaminationRequest
from nsa_doctor.fuzz.cases import Impl, Target
from nsa_doctor.fuzz.replay import SavedCase

EXAMPLES = 300
LENGTHS_ASKED = (8, 64, 128)  # to find out what a foreign module takes, the least first: it may hang at more


@dataclass(frozen=True, kw_only=True)
class FuzzRequest:
    """Whom to try, on what, and for how long; `replay` is one saved case to try in place of all that.

    `impl` is the implementation to try in place of those that plain torch has.
    """

    examination_request: ExaminationRequest
    targets: tuple[Target, ...]
    examples: int = EXAMPLES
    minutes: float | None = None
    save: Path | None = None
    impl: Impl | None = None
    replay: SavedCase | None = None
    replayed: Path | None = None

    def path(self, target: Target) -> Path:
        """Where a failing input of that target is saved."""
        if self.save is None:
            return Path(f"nsa-doctor-fuzz-{target}.json")
        if len(self.targets) == 1:
            return self.save
        return self.save.with_name(f"{self.save.stem}-{target}{self.save.suffix}")
