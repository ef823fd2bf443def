"""What the doctor says: findings, one result per check, one report per run."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Self

from nsa_doctor.core.measurement import Measurement, Place
from nsa_doctor.core.policy_verdict import PolicyVerdict
from nsa_doctor.core.proof import Proof

Scalar = str | int | float | bool | None
_MOST_FINDINGS = 3  # of one check; the rest is counted
# Evidence that says which thing is wrong, where the place alone does not; the rest of it is measured.
_NAMES = ("branch", "option", "parts", "property", "quantity", "seam", "target")


class ExitCode(IntEnum):
    """What the commands end with; 128 and its number where a signal ended one early."""

    WELL = 0
    WRONG = 1
    USAGE = 2
    UNMEASURED = 3
    BROKEN = 4
    INTERRUPTED = 130  # Ctrl-C's


class Verdict(StrEnum):
    """How one check ended; CRASH is the doctor's own fault, TIMEOUT the subject's."""

    PASS = "PASS"  # noqa: S105 (not a password)
    FAIL = "FAIL"
    SKIP = "SKIP"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"


class Decision(StrEnum):
    """What may be concluded from a report: only a full pass is a GO."""

    GO = "GO"
    NO_GO = "NO-GO"
    UNKNOWN = "UNKNOWN"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that decides this."""
        codes = {Decision.GO: ExitCode.WELL, Decision.NO_GO: ExitCode.WRONG, Decision.UNKNOWN: ExitCode.UNMEASURED}
        return codes[self]


class _Placed:
    """What is somewhere in the subject: `module`, `file` and `line` are those of `where`."""

    where: Place

    @property
    def module(self) -> str:
        """The dotted path of the module; empty for the subject itself."""
        return self.where.module

    @property
    def file(self) -> str:
        """The file of the line; empty where none is known."""
        return self.where.file

    @property
    def line(self) -> int:
        """The line in the file, counted from 1; 0 where none is known."""
        return self.where.line


@dataclass(frozen=True, kw_only=True)
class Finding(_Placed):
    """One thing that is wrong: where, what was measured, what was fine beside it, and a line that reproduces it.

    `also` names other checks that saw the same cause. `module`, `file` and `line` are those of `where`, `reproduce` is
    `repro`.
    """

    message: str
    where: Place = field(default_factory=Place)
    evidence: Mapping[str, Scalar] = field(default_factory=dict)
    control: str = ""
    repro: str = ""
    code: str = ""
    also: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` and JSON made of a Finding."""
        return cls(**{**data, "where": Place(**data["where"]), "also": tuple(data["also"])})

    @property
    def reproduce(self) -> str:
        """The command that shows the finding again."""
        return self.repro

    @property
    def fingerprint(self) -> str:
        """The same for the same fault under another seed, on another machine, or a few lines further down."""
        where = self.where
        file = re.split(r"[/\\]", where.file)[-1]
        named = [f"{name}={self.evidence[name]}" for name in _NAMES if name in self.evidence]
        identity = "\0".join([self.code, where.module, where.module_class, where.function, file, *named])
        return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Note(_Placed):
    """Something a reader should know that is not wrong by itself; `module`, `file` and `line` are those of `where`."""

    message: str
    where: Place = field(default_factory=Place)

    def __str__(self) -> str:
        place = str(self.where) if self.where != Place() else ""
        return f"{self.message} ({place})" if place else self.message


@dataclass(frozen=True, kw_only=True)
class Result:
    """How one check ended; `reason` says why it was skipped, crashed or ran out of time.

    `further` are the fingerprints of findings beyond those in `findings`, which hold the first few. `notes` are what it
    saw that is not wrong by itself, `examined` how it called the subject. A SKIP that is not `is_required` does not
    apply to the subject, which offers nothing of the kind, and does not stand in the way of a GO.
    """

    code: str
    name: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    is_required: bool = True
    further: tuple[str, ...] = ()
    examined: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` and JSON made of a Result."""
        findings = tuple(Finding.from_json(finding) for finding in data["findings"])
        texts = {name: tuple(data.get(name, ())) for name in ("notes", "further")}
        return cls(**{**data, **texts, "verdict": Verdict(data["verdict"]), "findings": findings})

    def with_findings(self, findings: Sequence[Finding]) -> "Result":
        """The result with the first few of these findings, and the fingerprints of the others."""
        further = tuple(finding.fingerprint for finding in findings[_MOST_FINDINGS:])
        return replace(self, findings=tuple(findings[:_MOST_FINDINGS]), further=further)

    def parted(self) -> "tuple[Result, tuple[Finding, ...]]":
        """The result with the findings that bear its code, and those that its calls gave for other checks."""
        own = tuple(finding for finding in self.findings if finding.code in ("", self.code))
        return replace(self, findings=own), tuple(finding for finding in self.findings if finding not in own)

    @property
    def remark(self) -> str:
        """How many findings there are beyond those it holds; empty for none."""
        return f"{self.code}: and {len(self.further)} more of the same check" if self.further else ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything one command found out.

    `subject`, `options` and `environment` say what was examined and how; `measurements` hold a sweep's table,
    `throughput` what was timed, `run` the facts of a training run, `gates` a checkpoint's gates, one mapping each;
    `verdict` is what a policy file made of it all, `proof` what it notices of mutants of the subject.
    `render/report_format` says what is in each. `interrupted` is true when a person stopped it.
    """

    command: str
    subject: Mapping[str, Any]
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    results: tuple[Result, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False
    throughput: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    gates: tuple[Mapping[str, Any], ...] = ()
    verdict: PolicyVerdict | None = None
    proof: Proof | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all results, in their order."""
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def num_findings(self) -> int:
        """Findings of all results, with those that are counted alone."""
        return sum(len(result.findings) + len(result.further) for result in self.results)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and which checks have findings beyond those that are here."""
        return (*self.notes, *(result.remark for result in self.results if result.further))

    @property
    def decision(self) -> Decision:
        """What the policy file decided; without one NO-GO on any FAIL or TIMEOUT, UNKNOWN when anything is missing."""
        if self.verdict is not None:
            return Decision(self.verdict.decision)
        verdicts = {
            result.verdict for result in self.results if result.is_required or result.verdict is not Verdict.SKIP
        }
        if verdicts & {Verdict.FAIL, Verdict.TIMEOUT}:
            return Decision.NO_GO
        if self.interrupted or not verdicts or verdicts - {Verdict.PASS}:
            return Decision.UNKNOWN
        return Decision.GO
