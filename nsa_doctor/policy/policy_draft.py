"""A first policy file for a subject, drafted from what was measured now; people then make it their own."""

import json
from collections.abc import Iterable, Iterator, Mapping

from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.text import escaped

_MARGIN = 0.2  # of a run's speed, which varies from machine to machine and from day to day
_CODES_A_LINE = 9
_LONGEST_DEVICE = 100
# Of a run's numbers: which way a limit goes, and what it is drafted as when the run shows this number.
_AT_LEAST = ("steps", "tokens_per_second", "checkpoints", "resumes")
_AT_MOST = {"loss_ratio": 0.95, "nonfinite_losses": 0.0, "watchdog_dumps": 0.0, "memory_growth": 0.05}


def draft(report: Report, measured: Mapping[str, float | None], device_name: str) -> str:
    """The text of a policy file: passed checks are required, failed ones too, with what to write to accept them."""
    passed = [result.code for result in report.results if result.verdict is Verdict.PASS]
    missing = [result.code for result in report.results if _is_not_offered(result)]
    failed = [result for result in report.results if result.verdict in (Verdict.FAIL, Verdict.TIMEOUT)]
    open_ones = [result for result in report.results if result not in failed and result.code not in (*passed, *missing)]
    name = _text(report.subject["name"])
    lines = [
        f"# What {_comment(str(report.subject['name']))} has to pass: a draft of nsa-doctor gate-init to change.",
        "# Every entry says why it is there: replace the reasons by your own.",
        f"name: {name}",
        f"profile: {report.options.get('profile', 'quick')}",
        "require:",
        *_requirement(passed, "passed when this policy was drafted, and has to go on passing"),
        *_requirement(missing, "the subject offered no such part then; where it does, it has to be right", True),
        *_requirement(
            [result.code for result in failed], "failed when this policy was drafted: mend it, or accept it below"
        ),
        *_requirement([result.code for result in open_ones], "could not be decided when this policy was drafted"),
        *_limits(measured, device_name),
        *_acceptances(report.results),
    ]
    return "\n".join(lines) + "\n"


def _requirement(codes: list[str], because: str, where_offered: bool = False) -> Iterator[str]:
    if not codes:
        return
    rows = [", ".join(codes[i : i + _CODES_A_LINE]) for i in range(0, len(codes), _CODES_A_LINE)]
    yield "  - codes: [" + ",\n      ".join(rows) + "]"
    yield f"    because: {_text(because)}"
    if where_offered:
        yield "    where_offered: true"


def _limits(measured: Mapping[str, float | None], device_name: str) -> Iterator[str]:
    known = {name: value for name, value in measured.items() if value is not None}
    drafted = [
        *((name, "at_least", _least(name, known[name])) for name in _AT_LEAST if known.get(name)),
        *((name, "at_most", most) for name, most in _AT_MOST.items() if name in known),
    ]
    if drafted:
        yield "limits:"
    for name, bound, value in drafted:
        yield f"  - measure: {name}"
        yield f"    {bound}: {value!r}"
        if name == "tokens_per_second" and device_name.isprintable() and device_name:
            yield f"    device: {_text(device_name[:_LONGEST_DEVICE])}"
        yield f"    because: {_text(f'the run that this policy was drafted from showed {known[name]:.4g}')}"


def _least(name: str, value: float) -> float:
    if name == "tokens_per_second":
        return float(f"{value * (1 - _MARGIN):.2g}")
    return 1.0 if name in ("checkpoints", "resumes") else value


def _acceptances(results: Iterable[Result]) -> Iterator[str]:
    """Commented out: to accept a finding takes a person and a reason."""
    for index, (fingerprint, text) in enumerate(pair for result in results for pair in _findings_of(result)):
        if index == 0:
            yield "# To let a known finding stay, take its lines out of the comment and say why:"
            yield "# accept:"
        yield f"#   - fingerprint: {_text(fingerprint)}  # {_comment(text)}"
        yield "#     because:"


def _findings_of(result: Result) -> Iterator[tuple[str, str]]:
    """Each fingerprint once, and what it stands for."""
    texts = {finding.fingerprint: f"{finding.code} {finding.message}" for finding in result.findings}
    yield from {**dict.fromkeys(result.further, f"{result.code}, of the findings that are not shown"), **texts}.items()


def _is_not_offered(result: Result) -> bool:
    return result.verdict is Verdict.SKIP and not result.is_required


def _text(text: str) -> str:
    """A scalar that YAML reads back as this text: JSON's strings are YAML's, its surrogate pairs are not."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _comment(text: str) -> str:
    return escaped(" ".join(text.split()))
