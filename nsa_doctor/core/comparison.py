"""Two reports on one subject: what is new, what is fixed, what is still there, what has become slower."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from nsa_doctor.core.finding import Decision, ExitCode, Finding
from nsa_doctor.core.text import counted


class Outcome(StrEnum):
    """What may be concluded: only where all was looked at again is it no worse."""

    BETTER = "BETTER"
    NO_WORSE = "NO WORSE"
    WORSE = "WORSE"
    UNKNOWN = "UNKNOWN"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `nsa-doctor compare`."""
        codes = {Outcome.WORSE: ExitCode.WRONG, Outcome.UNKNOWN: ExitCode.UNMEASURED}
        return codes.get(self, ExitCode.WELL)


@dataclass(frozen=True, kw_only=True)
class Slower:
    """One quantity that has grown: `before` and `after` as a reader wants them, with their unit."""

    what: str
    before: str
    after: str
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The later report against the earlier one.

    `unseen` are findings of the earlier one whose checks did not end in the later one, `unanswered` the codes of
    checks that passed and give no answer any more; `further` counts (new, fixed, still there) of findings that reports
    hold as fingerprints alone. `remarks` say what keeps the two from being compared, `notes` what a reader should know.
    """

    subject: str
    old_name: str
    new_name: str
    old: Decision
    new: Decision
    appeared: tuple[Finding, ...] = ()
    fixed: tuple[Finding, ...] = ()
    still: tuple[Finding, ...] = ()
    unseen: tuple[Finding, ...] = ()
    unanswered: tuple[str, ...] = ()
    further: tuple[int, int, int] = (0, 0, 0)
    slower: tuple[Slower, ...] = ()
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """WORSE for a new finding or a new NO-GO, else UNKNOWN for what was not looked at again.

        BETTER needs a finding that is fixed, and nothing that has become slower.
        """
        if self.remarks:
            return Outcome.UNKNOWN
        if self.appeared or self.further[0] or (self.new is Decision.NO_GO and self.old is not Decision.NO_GO):
            return Outcome.WORSE
        fell = self.new is Decision.UNKNOWN and self.old is Decision.GO
        if self.unseen or self.unanswered or fell:
            return Outcome.UNKNOWN
        has_fixed = bool(self.fixed or self.further[1])
        return Outcome.BETTER if has_fixed and not self.slower else Outcome.NO_WORSE

    @property
    def verdicts(self) -> str:
        """`NO-GO, was GO`."""
        return f"{self.new.value}, was {self.old.value}" if self.new is not self.old else f"{self.new.value} as before"

    @property
    def counts(self) -> str:
        """How many findings of each kind, in words."""
        more = dict(zip(("new", "fixed", "still there"), self.further, strict=True))
        kinds = {"new": self.appeared, "fixed": self.fixed, "still there": self.still}
        words = [f"{len(found) + more[word]} {word}" for word, found in kinds.items()]
        words += [f"{len(self.unseen)} not looked at again"] if self.unseen else []
        slower = f"; {counted(len(self.slower), 'measure')} slower or larger" if self.slower else ""
        return ", ".join(words) + slower

    def sections(self) -> Iterator[tuple[str, tuple[Finding, ...]]]:
        """The findings by what became of them, those that matter most first."""
        yield "New", self.appeared
        yield "Not looked at again", self.unseen
        yield "Still there", self.still
        yield "Fixed", self.fixed
