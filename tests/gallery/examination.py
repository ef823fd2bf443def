"""One case examined by `nsa-doctor run` in a process of its own: what it found, and how long it took."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsa_doctor.core.finding import ExitCode
from tests.gallery.cases import Case

ROOT = Path(__file__).parents[2]
FOUND = ExitCode.WRONG
SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """One finding as the report has it; a check that ran out of time counts as one.

    `also` are the other checks that saw the same, `tensor` the one that its evidence names.
    """

    code: str
    message: str
    tensor: str = ""
    module: str = ""
    module_class: str = ""
    file: str = ""
    line: int = 0
    also: tuple[str, ...] = ()

    def is_at(self, modules: Sequence[str]) -> bool:
        """Whether it names one of them; the subject itself, whose path is empty, counts by its class or line."""
        return self.module in modules and bool(self.module or self.module_class or self.file)


@dataclass(frozen=True, kw_only=True)
class Examination:
    """A case and what the doctor said of it; `exit_code` is None when it took longer than it may."""

    case: Case
    exit_code: int | None
    seconds: float
    findings: tuple[Found, ...] = ()
    trouble: tuple[str, ...] = field(default=())

    @property
    def is_found(self) -> bool:
        return self.exit_code == FOUND and bool(self.findings)

    @property
    def names_module(self) -> bool:
        """Whether the first finding names a module that is at fault."""
        return self.is_found and self.findings[0].is_at(self.case.modules)

    @property
    def is_rightly_found(self) -> bool:
        """Whether some finding is about this bug: it names a module at fault, or an illness the case is known by."""
        return self.is_found and any(
            found.is_at(self.case.modules) or not self.case.codes.isdisjoint((found.code, *found.also))
            for found in self.findings
        )

    @property
    def names_line(self) -> bool:
        """Whether the first finding names a marked line."""
        first = self.findings[0] if self.is_found else Found(code="", message="")
        return bool(first.file) and Path(first.file).name == self.case.file.name and first.line in self.case.lines


@dataclass(frozen=True)
class Ended:
    """How a command ended; `exit_code` is None when it took longer than it may."""

    exit_code: int | None
    seconds: float
    out: str = ""
    complaint: str = ""


def examine(case: Case, profile: str = "quick", seconds: float = SECONDS) -> Examination:
    """Run the doctor on the case; a run that takes longer than `seconds` is ended with all its children."""
    words = ["run", "--subject", case.spec, "--profile", profile, "--jobs", "1", "--format", "json", "--quiet"]
    ended = run_doctor(words, seconds)
    if ended.exit_code is None:
        return Examination(case=case, exit_code=None, seconds=ended.seconds, trouble=(ended.complaint,))
    return read_report(case, ended.exit_code, ended.seconds, ended.out, ended.complaint)


def run_doctor(words: Sequence[str], seconds: float, folder: Path = ROOT) -> Ended:
    """Run `nsa-doctor` with these words in a folder, in one thread."""
    begin = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "nsa_doctor", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, complaint = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            took = time.monotonic() - begin
            return Ended(None, took, complaint=f"no answer in {took:.0f} s")
    return Ended(process.returncode, time.monotonic() - begin, out, complaint)


def read_report(case: Case, exit_code: int, seconds: float, out: str, complaint: str) -> Examination:
    """What a finished run said; one whose report cannot be read says so among its troubles."""
    findings, trouble = read_findings(out, complaint)
    return Examination(case=case, exit_code=exit_code, seconds=seconds, findings=findings, trouble=trouble)


def read_findings(out: str, complaint: str) -> tuple[tuple[Found, ...], tuple[str, ...]]:
    """The findings of a report, and what went wrong: checks that broke, or why there is no report."""
    try:
        results = json.loads(out)["results"]
    except (ValueError, KeyError):
        return (), ((complaint.strip() or out.strip() or "nothing printed").splitlines()[-1],)
    broken = tuple(
        f"{result['code']} {result['verdict']}: {result.get('reason', '')}"
        for result in results
        if result["verdict"] in ("CRASH", "TIMEOUT")
    )
    return tuple(found for result in results for found in findings_of(result)), broken


def findings_of(result: Mapping[str, Any]) -> Iterator[Found]:
    """The findings of one result of a report; TIMEOUT alone is one."""
    for finding in result["findings"]:
        where = finding["where"]
        yield Found(
            code=finding.get("code") or result["code"],
            message=finding["message"],
            tensor=str(finding.get("evidence", {}).get("tensor", "")),
            module=where["module"],
            module_class=where["module_class"],
            file=where["file"],
            line=where["line"],
            also=tuple(finding["also"]),
        )
    if result["verdict"] == "TIMEOUT" and not result["findings"]:
        yield Found(code=result["code"], message=f"TIMEOUT {result.get('reason', '')}")
