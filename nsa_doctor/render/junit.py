"""A report as JUnit XML: a suite per family, a case per check, and one case that is the decision itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from nsa_doctor.core.families import family_of
from nsa_doctor.core.finding import Decision, Finding, Report, Result, Verdict
from nsa_doctor.core.policy_verdict import LimitResult
from nsa_doctor.core.text import escaped
from nsa_doctor.render.summary import (
    acceptances,
    conclusion,
    conditions,
    long_evidence,
    measured,
    ordered_findings,
    scalar,
    subject_line,
)

_NAME = "nsa-doctor"
_LONGEST = 10_000
Outcome = Literal["failure", "error", "skipped"]


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One line of a test report; no outcome means that it passed."""

    group: str
    name: str
    seconds: float = 0.0
    outcome: Outcome | None = None
    kind: str = ""
    message: str = ""
    details: str = ""


def render(report: Report) -> str:
    """The report in the dialect of Surefire and Jenkins, which GitLab and others read."""
    suites: dict[str, list[_Case]] = {}
    codes = list(dict.fromkeys(result.code for result, _ in ordered_findings(report)))
    for result in sorted(report.results, key=lambda each: codes.index(each.code) if each.code in codes else len(codes)):
        family, title = family_of(result.code)
        suites.setdefault(f"{family} {title}".strip(), []).append(_checked(result, report))
    if report.verdict is not None and report.verdict.limits:
        suites["limits"] = [_limited(held) for held in report.verdict.limits]
    suites["decision"] = [_decided(report)]
    root = ElementTree.Element("testsuites", name=_NAME)
    for number, (name, cases) in enumerate(suites.items()):
        root.append(_suite(name, cases, report if number == len(suites) - 1 else None))
    _count(root, [case for cases in suites.values() for case in cases])
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _checked(result: Result, report: Report) -> _Case:
    outcomes: dict[Verdict, Outcome] = {
        Verdict.FAIL: "failure",
        Verdict.TIMEOUT: "error",
        Verdict.CRASH: "error",
        Verdict.SKIP: "skipped",
    }
    outcome = outcomes.get(result.verdict)
    message = result.reason or "; ".join(finding.message for finding in result.findings)
    reasons = _accepted(result, report)
    if reasons:
        outcome, message = "skipped", f"accepted: {'; '.join(reasons)}"
    return _Case(
        group=f"{_NAME}.{family_of(result.code)[0]}",
        name=result.code if result.code.endswith(result.name) else f"{result.code} {result.name}",
        seconds=result.seconds,
        outcome=outcome,
        kind=result.verdict.value,
        message=message or f"ended {result.verdict.value}",
        details="\n\n".join(filter(None, (*(_details(finding) for finding in result.findings), result.remark))),
    )


def _accepted(result: Result, report: Report) -> list[str]:
    """Why everything that the check saw may stay, reported by it or by another; nothing when anything may not."""
    known = acceptances(report)
    seen = [finding for finding in report.findings if result.code in (finding.code, *finding.also)]
    all_of_them = (*(finding.fingerprint for finding in seen), *result.further)
    if result.verdict not in (Verdict.FAIL, Verdict.TIMEOUT) or not all(each in known for each in all_of_them):
        return []
    return list(dict.fromkeys(known[finding.fingerprint] for finding in seen))


def _limited(held: LimitResult) -> _Case:
    measurement = "not measured" if held.measured is None else f"{scalar(held.measured)} {held.unit}".strip()
    outcomes: dict[str, Outcome | None] = {"kept": None, "broken": "failure", "other device": "skipped"}
    return _Case(
        group=f"{_NAME}.limits",
        name=f"{held.title} {held.bound}" + (f" on {held.device}" if held.device else ""),
        outcome=outcomes.get(held.kept, "error"),
        kind=held.kept,
        message=f"{measurement}, must be {held.bound}: {held.because}",
    )


def _decided(report: Report) -> _Case:
    """NO-GO and UNKNOWN must not look green where only the colour is looked at."""
    outcomes: dict[Decision, Outcome | None] = {Decision.GO: None, Decision.NO_GO: "failure"}
    why = report.verdict.why if report.verdict is not None else ()
    return _Case(
        group=_NAME,
        name="decision",
        seconds=report.seconds,
        outcome=outcomes.get(report.decision, "error"),
        kind=report.decision.value,
        message=f"{report.decision.value}: {conclusion(report)}",
        details="\n".join((*why, *(["interrupted"] if report.interrupted else []))),
    )


def _details(finding: Finding) -> str:
    """A finding line by line."""
    where = finding.where
    facts = {
        "module": where.module_text,
        "line": f"{where.line_text} in {where.function}" if where.file else "",
        "measured": ", ".join(f"{name} {value}" for name, value in measured(finding)),
        "control": finding.control,
        "also": ", ".join(finding.also),
        "fingerprint": finding.fingerprint,
        "again": finding.repro,
    }
    lines = [f"  {name}: {text}" for name, text in facts.items() if text]
    return "\n".join([f"{finding.code} {finding.message}", *lines, *(text for _, text in long_evidence(finding))])


def _suite(name: str, cases: Sequence[_Case], report: Report | None) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_clean(name))
    _count(suite, cases)
    if report is not None:
        properties = ElementTree.SubElement(suite, "properties")
        about = {"subject": subject_line(report), "conditions": conditions(report), "command": report.command}
        for key, value in about.items():
            ElementTree.SubElement(properties, "property", name=key, value=_clean(value))
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=_clean(case.group), name=_clean(case.name), time=_seconds(case.seconds)
        )
        if case.outcome == "skipped":
            ElementTree.SubElement(element, "skipped", message=_clean(case.message))
        elif case.outcome is not None:
            ended = ElementTree.SubElement(element, case.outcome, message=_clean(case.message), type=_clean(case.kind))
            ended.text = "\n".join(_clean(line) for line in case.details.splitlines()) or None
    if report is not None and report.remarks:
        ElementTree.SubElement(suite, "system-out").text = "\n".join(_clean(note) for note in report.remarks)
    return suite


def _count(element: ElementTree.Element, cases: Sequence[_Case]) -> None:
    outcomes = [case.outcome for case in cases]
    element.set("tests", str(len(cases)))
    element.set("failures", str(outcomes.count("failure")))
    element.set("errors", str(outcomes.count("error")))
    if element.tag == "testsuite":
        element.set("skipped", str(outcomes.count("skipped")))
    element.set("time", _seconds(sum(case.seconds for case in cases)))


def _seconds(seconds: float) -> str:
    return f"{max(seconds, 0.0):.3f}" if seconds < float("inf") else "0.000"  # NaN and infinity are no durations


def _clean(text: str) -> str:
    """On one line, with nothing that XML forbids."""
    shown = escaped(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
