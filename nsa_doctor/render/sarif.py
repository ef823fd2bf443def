"""A report as SARIF 2.1.0, for code scanning: rules from the checks' manuals, a result per finding."""

import json
import re
from collections.abc import Iterator
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.check import Manual
from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.families import family_of
from nsa_doctor.core.finding import ExitCode, Finding, Report, Result, Scalar, Verdict
from nsa_doctor.core.text import escaped
from nsa_doctor.render.json import strict
from nsa_doctor.render.markdown_text import fenced, prose
from nsa_doctor.render.repository_paths import in_repository, is_file, line_of, subjects_file, uri, uri_elsewhere
from nsa_doctor.render.summary import acceptances, conclusion, conditions, ordered_findings, subject_line

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "SRCROOT"
_FINGERPRINT = "nsaDoctorFinding/v1"
_LINK = re.compile(r"\[([^\[\]]*)\](?=\()")
_LONGEST = 4000


def render(report: Report) -> str:
    """One run of one log; every result has a place in a file, without which GitHub refuses the whole log."""
    names = {finding.code: "" for finding in report.findings} | {result.code: result.name for result in report.results}
    codes, manuals = sorted(names), registry.manuals()
    rules = [_rule(code, names[code], manuals.get(code)) for code in codes]
    pairs = list(ordered_findings(report))
    run = {
        "tool": {"driver": {"name": "nsa-doctor", **_version(report), "rules": rules}},
        "automationDetails": {"id": f"nsa-doctor/{uri(str(report.subject.get('name', '')))}/"},
        "invocations": [_invocation(report)],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository that was examined."}}},
        "results": [_result(result, finding, codes.index(finding.code), report) for result, finding in pairs],
        "columnKind": "unicodeCodePoints",
        "properties": {"decision": report.decision.value, "subject": subject_line(report)},
    }
    return json.dumps(strict({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}), indent=2) + "\n"


def _version(report: Report) -> dict[str, str]:
    version = str(report.environment.get("nsa_doctor", ""))
    return {"version": escaped(version)} if version else {}


def _rule(code: str, name: str, manual: Manual | None) -> dict[str, Any]:
    family, title = family_of(code)
    rule = {"id": escaped(code), "properties": {"tags": list(dict.fromkeys(filter(None, (escaped(family), title))))}}
    if manual is None:
        said = _message(name or code)
        return {**rule, "shortDescription": said, "fullDescription": said, "help": said}
    return {
        **rule,
        "name": "".join(word.capitalize() for word in manual.name.split("-")),
        "shortDescription": _message(manual.name.replace("-", " ")),
        "fullDescription": _message(manual.detects),
        "help": _help(manual),
        **({"helpUri": address} if (address := address_of(code)) else {}),
        "defaultConfiguration": {"level": "error"},
    }


def _help(manual: Manual) -> dict[str, str]:
    """What the manual says, as plain text and as GitHub shows it."""
    parts = {"Detects": manual.detects, "Matters": manual.matters, "Fix": manual.fix}
    shown = [f"**{label}**: {prose(text)}" for label, text in parts.items()]
    shown += [fenced(manual.example, "python")] if manual.example else []
    plain = _message("\n\n".join(f"{label}: {text}" for label, text in parts.items()))
    return {**plain, "markdown": "\n\n".join(shown)}


def _result(result: Result, finding: Finding, index: int, report: Report) -> dict[str, Any]:
    accepted = acceptances(report).get(finding.fingerprint)
    parts = [
        finding.message,
        finding.control and f"Control: {finding.control}",
        finding.repro and f"Reproduce: {finding.repro}",
    ]
    fields: dict[str, Any] = {
        "ruleId": escaped(finding.code),
        "ruleIndex": index,
        "level": "error",
        "message": _message("\n".join(part for part in parts if part)),
        "locations": [_location(finding, report)],
        "partialFingerprints": {_FINGERPRINT: finding.fingerprint},
        "properties": {"verdict": result.verdict.value, **_bag(finding)},
    }
    baseline = report.verdict.baseline if report.verdict is not None else None
    if baseline is not None:
        fields["baselineState"] = "unchanged" if finding.fingerprint in baseline.unchanged else "new"
    if accepted is not None:
        fields["suppressions"] = [{"kind": "external", "status": "accepted", "justification": escaped(accepted)}]
    return fields


def _bag(finding: Finding) -> dict[str, Any]:
    evidence: dict[str, Scalar] = {escaped(key): value for key, value in finding.evidence.items()}
    bag = {"evidence": evidence, "control": finding.control, "repro": finding.repro, "also": list(finding.also)}
    return {key: value for key, value in bag.items() if value}


def _location(finding: Finding, report: Report) -> dict[str, Any]:
    """Its line; else the file of the subject; else the subject in the place of a file."""
    place = finding.where
    known = place.file if is_file(place.file) else subjects_file(report)
    artifact: dict[str, Any]
    if known and (path := in_repository(known, report)) is not None:
        artifact = {"uri": uri(path), "uriBaseId": _ROOT}
    elif known:
        artifact = {"uri": uri_elsewhere(known)}
    else:
        name = escaped(str(report.subject.get("name", ""))) or "subject"
        artifact = {"uri": uri(name), "description": {"text": "The subject; no file is known."}}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line_of(place) or 1}}
    }
    if place.module_text:
        logical = {"fullyQualifiedName": escaped(place.module or place.module_class), "kind": "module"}
        location["logicalLocations"] = [logical]
    return location


def _invocation(report: Report) -> dict[str, Any]:
    crashed = any(result.verdict is Verdict.CRASH for result in report.results)
    code = ExitCode.INTERRUPTED if report.interrupted else report.decision.exit_code
    return {
        "executionSuccessful": not crashed and not report.interrupted,
        "exitCode": int(code),
        "exitCodeDescription": escaped(f"{report.decision.value}: {conclusion(report)}"),
        "toolExecutionNotifications": list(_notifications(report)),
        "properties": {"command": escaped(report.command), "conditions": escaped(conditions(report))},
    }


def _notifications(report: Report) -> Iterator[dict[str, Any]]:
    """What crashed, what was not checked though it is required, what a reader should know."""
    for result in report.results:
        if result.verdict is Verdict.CRASH:
            yield {"level": "error", "message": _message(f"{result.code} crashed: {result.reason}")}
        elif result.verdict is Verdict.SKIP and result.is_required:
            yield {"level": "warning", "message": _message(f"{result.code} not checked: {result.reason}")}
    for why in report.verdict.why if report.verdict is not None else ():
        yield {"level": "note", "message": _message(why)}
    for note in report.remarks:
        yield {"level": "note", "message": _message(note)}


def _message(text: str) -> dict[str, str]:
    """A plain text message, in which brackets would make links and braces would be filled in."""
    shown = "\n".join(escaped(line) for line in text.splitlines())
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    shown = _LINK.sub(r"\\[\1\\]", shown).replace("{", "{{").replace("}", "}}")
    return {"text": shown or "-"}
