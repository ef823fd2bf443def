"""What a command line says of whom to examine."""

from dataclasses import dataclass

from nsa_doctor.core.check import Profile
from nsa_doctor.subject.contract import InputKind


@dataclass(frozen=True, kw_only=True)
class SubjectRequest:
    """What to examine: the built-in subject at a configuration, or `spec` (package.module:factory).

    `lengths` are those a foreign module may be tried at to find out what it takes; with `explore` it is also tried at
    growing ones, those to `avoid` apart, to find out how long a sequence it serves and, where its calls are slow, how
    long a one the `profile` has time for. `declared` are words that say what
    it is meant to be (`core.declared.Declaration`). `train` names its training step or loop (package.module:function).
    `size` "real" is for a model of transformers, which is small else.
    """

    spec: str | None = None
    config: str | None = None
    input: InputKind | None = None
    width: int | None = None
    declared: tuple[str, ...] = ()
    train: str | None = None
    size: str | None = None
    seed: int = 0
    device: str = "cpu"
    lengths: tuple[int, ...] = (128,)
    explore: bool = False
    avoid: tuple[int, ...] = ()
    profile: Profile = "quick"
