"""One subject put through `nsa-doctor go-no-go` in a folder of its own: its decision, why, and how long it took."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.false_go.fault import Fault, write
from tests.gallery.examination import Ended, Found, findings_of, run_doctor

SECONDS = 400.0
NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Healthy:
    """A healthy subject, by the import name of its module and its factory's."""

    module: str
    factory: str

    @property
    def name(self) -> str:
        return f"{self.module.rpartition('.')[2]}-{self.factory}"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A subject and what was decided of it; `place` says how near the first finding comes to the lines at fault."""

    subject: Fault | Healthy
    decision: str
    seconds: float
    findings: tuple[Found, ...] = ()
    why: tuple[str, ...] = ()
    place: str = ""

    @property
    def name(self) -> str:
        return self.subject.name

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "decision": self.decision,
            "seconds": round(self.seconds, 1),
            "place": self.place,
            "why": list(self.why),
            "findings": [vars(found) for found in self.findings],
        }

    @classmethod
    def from_json(cls, subject: Fault | Healthy, record: Mapping[str, Any]) -> "Examined":
        return cls(
            subject=subject,
            decision=record["decision"],
            seconds=record["seconds"],
            findings=tuple(Found(**{**found, "also": tuple(found["also"])}) for found in record["findings"]),
            why=tuple(record["why"]),
            place=record["place"],
        )


def examine(subject: Fault | Healthy, policy: str, seconds: float = SECONDS) -> Examined:
    """Run the real command on the subject; one that takes longer than `seconds` is ended."""
    with tempfile.TemporaryDirectory(prefix="false-go-") as made:
        folder = Path(made)
        lines: frozenset[int] = frozenset()
        if isinstance(subject, Fault):
            written = write(subject)
            (folder / f"{subject.file_name}.py").write_text(written.text, encoding="utf-8")
            spec, lines = f"{subject.file_name}:make", written.lines
        else:
            spec = f"{subject.module}:{subject.factory}"
        ended = run_doctor(words(spec, policy, subject), seconds, folder)
        return read_verdict(subject, ended, folder / "go-no-go" / "report.json", lines)


def words(spec: str, policy: str, subject: Fault | Healthy) -> list[str]:
    """The command line; a call that hangs need not be waited for as long as one that is slow."""
    limit = subject.effect.seconds if isinstance(subject, Fault) else None
    shortened = [] if limit is None else ["--timeout", str(limit)]
    return ["go-no-go", "--subject", spec, "--policy", policy, "--jobs", "1", "--quiet", *shortened]


def read_verdict(subject: Fault | Healthy, ended: Ended, file: Path, lines: frozenset[int]) -> Examined:
    """What a finished run decided; without a report, the last line that it printed is the reason."""
    if ended.exit_code is None or not file.is_file():
        last = (ended.complaint.strip() or ended.out.strip() or "nothing printed").splitlines()[-1]
        return Examined(subject=subject, decision=NO_ANSWER, seconds=ended.seconds, why=(last,))
    report = json.loads(file.read_text(encoding="utf-8"))
    findings = tuple(found for result in report["results"] for found in findings_of(result))
    verdict = report["verdict"]
    return Examined(
        subject=subject,
        decision=verdict["decision"],
        seconds=ended.seconds,
        findings=findings,
        why=tuple(verdict["why"]),
        place=_place(subject, findings, lines) if isinstance(subject, Fault) else "",
    )


def _place(fault: Fault, findings: Sequence[Found], lines: frozenset[int]) -> str:
    if not findings:
        return ""
    first = findings[0]
    if Path(first.file).stem == fault.file_name and first.line in lines:
        return "line"
    return "module" if first.is_at(fault.paths) else "elsewhere"
