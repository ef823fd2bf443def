"""Which subject to examine, and under which conditions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsa_doctor.core.check import Kind, Profile

COMPILE_SECONDS = 900.0  # --compile-timeout where none is given


@dataclass(frozen=True, kw_only=True)
class ExaminationRequest:
    """Whom to examine and under which conditions.

    `declared` are words of `--spec`, which the subject is meant to be; `train` names its training step or loop;
    `size` "real" is for a model of transformers, which is small else. A
    function (`fn:…`) is called `like` a convention, and may have a `reference` and a file of `inputs`.
    `timeout` is what one measurement, or one call in a check, may take, in seconds, `compile_timeout` what it may take
    beside that while something compiles; `dtype` None is the subject's own;
    `threads` 0 leaves their number to torch; `explore` finds out how long a sequence a foreign subject serves, unless
    `found_out` says what was found out of one before. `replaced` holds (file, text): what is imported in place of what
    the file holds.
    """

    spec: str | None = None
    config: str | None = None
    input: str | None = None
    width: int | None = None
    declared: tuple[str, ...] = ()
    train: str | None = None
    size: str | None = None
    like: str | None = None
    reference: str | None = None
    inputs: str | None = None
    device: str = "cpu"
    dtype: str | None = None
    seed: int = 0
    profile: Profile = "quick"
    threads: int = 0
    explore: bool = False
    forward_only: bool = False
    lengths: tuple[int, ...] = (128,)
    boundaries_up_to: int | None = None
    are_all_lengths: bool = False
    timeout: float = 60.0
    compile_timeout: float = COMPILE_SECONDS
    found_out: Mapping[str, Any] = field(default_factory=dict, hash=False)
    replaced: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> Kind:
        """What is examined."""
        return "module" if self.like is None else "function"
