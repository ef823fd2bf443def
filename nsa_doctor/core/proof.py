"""What mutation testing of a subject's own source shows of a policy: which changes it notices, and which it misses."""

from dataclasses import dataclass
from typing import Literal

from nsa_doctor.core.share import Share

Fate = Literal["noticed", "missed", "unknown", "raises", "same", "other order", "other parameters"]
COUNTED: tuple[Fate, ...] = ("noticed", "missed", "unknown")


@dataclass(frozen=True, kw_only=True)
class MutantFate:
    """One small change of a line, and what became of it.

    `noticed` is NO-GO, `missed` GO, `unknown` neither. What `raises` at every length, or when it is built, is noticed
    by anybody; the `same` computes what it did, up to rounding; `other order` computes it with parameters exchanged or
    negated, as where one projection's queries and keys change places: a checkpoint tells them apart, training does not;
    `other parameters` is another model, of which nothing says that it is wrong: these four do not count. `changed` says
    what it does, where and by how much, `by` who noticed.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    fate: Fate
    changed: str = ""
    by: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a policy notices of `asked` mutants that `seed` draws among `candidates` of the lines that are reached.

    `lengths`, `dtype` and `modes` are where a mutant must give something else to count. `reason` says why there are
    fewer than asked for, or none.
    """

    asked: int
    seed: int
    candidates: int = 0
    files: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    dtype: str = ""
    modes: tuple[str, ...] = ()
    mutants: tuple[MutantFate, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    noticed_low: float = 0.0
    noticed_high: float = 1.0

    @property
    def counted(self) -> tuple[MutantFate, ...]:
        """Those that change what is computed."""
        return tuple(mutant for mutant in self.mutants if mutant.fate in COUNTED)

    @property
    def noticed(self) -> Share:
        """Mutants that end in NO-GO, of those that count."""
        return Share(self.number("noticed"), len(self.counted))

    def number(self, fate: Fate) -> int:
        """How many mutants ended so."""
        return sum(mutant.fate == fate for mutant in self.mutants)

    def those(self, fate: Fate) -> tuple[MutantFate, ...]:
        """The mutants that ended so."""
        return tuple(mutant for mutant in self.mutants if mutant.fate == fate)
