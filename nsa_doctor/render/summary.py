"""A report in words that every format uses: what it concludes, of which subject, under which conditions."""

from collections.abc import Iterator, Mapping

from nsa_doctor.core.finding import Decision, Finding, Report, Result, Scalar, Verdict
from nsa_doctor.core.own_nsa import NAME
from nsa_doctor.core.registry import priorities
from nsa_doctor.core.text import counted, short_number

_DIGITS = 6
_OF_ONE_SUBJECT = ("run", "sweep", "anomaly", "throughput")


def conclusion(report: Report) -> str:
    """One sentence to stand behind the decision."""
    if report.verdict is not None and report.verdict.why:
        return report.verdict.why[0]
    match report.decision:
        case Decision.GO:
            if report.command == "sweep":
                return "everything that was measured is finite"
            passed = sum(result.verdict is Verdict.PASS for result in report.results)
            unit = "target" if report.command == "fuzz" else "check"
            return f"{passed} {unit}{'' if passed == 1 else 's'} passed"
        case Decision.NO_GO:
            failed = num_failed(report)
            seen = f" ({failed} checks failed)" if failed > report.num_findings > 0 else ""
            text = f"{counted(report.num_findings, 'finding')}{seen}"
            return f"{text}; `nsa-doctor explain CODE` says what each means and what to do"
        case Decision.UNKNOWN:
            return "nothing wrong was seen, but not everything was measured"


def num_failed(report: Report) -> int:
    """How many checks failed or ran out of time."""
    return sum(result.verdict in (Verdict.FAIL, Verdict.TIMEOUT) for result in report.results)


def grouped(report: Report) -> str:
    """Why there are fewer findings than failed checks; empty where there are not."""
    failed = num_failed(report)
    if not failed > report.num_findings > 0:
        return ""
    if report.num_findings == 1:
        return f"{failed} checks failed, and 1 finding names the likely cause: run again once it is mended."
    text = counted(report.num_findings, "finding")
    return f"{failed} checks failed, and {text} name the causes: what several checks see in one place is one finding."


def subject_line(report: Report) -> str:
    """The subject's name and what it is."""
    name, description = report.subject.get("name", ""), report.subject.get("description", "")
    return f"{name}: {description}" if description else f"{name}"


def is_builtin_example(report: Report) -> bool:
    """Whether the built-in layer was examined because nothing named another subject."""
    is_built_in = str(report.subject.get("name")).startswith(f"{NAME} (")
    return report.command in _OF_ONE_SUBJECT and is_built_in and not report.subject.get("options")


def conditions(report: Report) -> str:
    """Device, torch, seed and what went in."""
    subject, environment, parts = report.subject, report.environment, []
    if "device" in environment:
        parts.append(f"{environment['device']} ({environment.get('device_name', 'unknown')})")
    if "torch" in environment:
        parts.append(f"torch {environment['torch']}")
    if "seed" in report.options:
        parts.append(f"seed {report.options['seed']}")
    if "input" in subject:
        unit = "values" if subject["input"] == "embeddings" else "ids"
        parts.append(f"{subject['input']} of {subject.get('width')} {unit}")
    if subject.get("spec"):
        parts.append(f"declared {', '.join(subject['spec'])}")
    if subject.get("dtype", "float32") != "float32":
        parts.append(f"parameters in {subject['dtype']}" if "input" in subject else f"in {subject['dtype']}")
    return ", ".join(parts)


def ordered_findings(report: Report) -> Iterator[tuple[Result, Finding]]:
    """Each finding with its check, what has to be mended first before all; those that a policy accepts come last."""
    pairs = [(result, finding) for result in report.results for finding in result.findings]
    known, priority = acceptances(report), priorities({finding.code for _, finding in pairs})
    yield from sorted(pairs, key=lambda pair: (pair[1].fingerprint in known, priority[pair[1].code]))


def acceptances(report: Report) -> Mapping[str, str]:
    """Why a finding may stay, by its fingerprint."""
    return {} if report.verdict is None else {each.fingerprint: each.because for each in report.verdict.accepted}


def measured(finding: Finding) -> Iterator[tuple[str, str]]:
    """The evidence that fits on a line, in words."""
    for key, value in finding.evidence.items():
        if value != "" and "\n" not in str(value):
            yield key.replace("_", " "), scalar(value)


def long_evidence(finding: Finding) -> Iterator[tuple[str, str]]:
    """The evidence of several lines."""
    for key, value in finding.evidence.items():
        if "\n" in str(value):
            yield key.replace("_", " "), str(value)


def scalar(value: Scalar) -> str:
    """A value of the evidence as text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    return value if isinstance(value, str) else short_number(value, _DIGITS)
