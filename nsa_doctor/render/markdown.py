"""A report for a pull request's comment or a job's summary: the verdict first, then findings, the rest folded."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nsa_doctor.core import registry
from nsa_doctor.core.check import Manual
from nsa_doctor.core.documentation import address_of
from nsa_doctor.core.finding import Finding, Report, Result
from nsa_doctor.core.policy_verdict import Compared, LimitResult, PolicyVerdict, Required
from nsa_doctor.core.proof import Proof
from nsa_doctor.render.markdown_text import code, fenced, inside_html, prose, text
from nsa_doctor.render.overview import is_idle, missing, overview
from nsa_doctor.render.power import power_texts
from nsa_doctor.render.proof import share, terms, uncounted, unnoticed
from nsa_doctor.render.repository_paths import in_repository
from nsa_doctor.render.reproduce import command_line
from nsa_doctor.render.summary import (
    acceptances,
    conclusion,
    conditions,
    long_evidence,
    measured,
    ordered_findings,
    scalar,
)

MOST_CHARACTERS = 60_000  # GitHub takes 65,536 in a comment
_MOST_IN_A_LIST = 10_000


def render(report: Report) -> str:
    """The report as GitHub's Markdown; what does not fit into a comment is counted and left out."""
    pairs, manuals = list(ordered_findings(report)), registry.manuals()
    opening, room = fitting([*_verdict(report), *_table(report, pairs)], MOST_CHARACTERS)
    closing, room = fitting(list(_closing(report)), room)
    cards = [_card(result, finding, manuals.get(finding.code), report) for result, finding in pairs]
    kept, _ = fitting(cards, room)
    left_out = len(cards) - len(kept)
    more = [f"The details of {left_out} more findings are in the JSON report."] if left_out else []
    return "\n\n".join([*opening, *kept, *more, *closing]) + "\n"


def fitting(blocks: Sequence[str], room: int) -> tuple[list[str], int]:
    """The blocks there is room for, and how much is left."""
    kept = []
    for block in blocks:
        if len(block) + 2 <= room:
            kept.append(block)
            room -= len(block) + 2
    return kept, room


def _verdict(report: Report) -> Iterator[str]:
    yield f"## nsa-doctor: {report.decision.value}"
    if report.verdict is None:
        yield f"{conclusion(report)}."
    else:
        yield f"By the policy {code(report.verdict.gate)} (SHA-256 {code(report.verdict.gate_digest)}):"
        yield _bulleted([text(sentence) for sentence in report.verdict.why])
        if report.verdict.power is not None:
            yield f"It rests on:\n\n{_bulleted([text(said) for said in power_texts(report.verdict.power)])}"
    about = [code(str(report.subject.get("name", ""))), text(str(report.subject.get("description", "")))]
    yield " — ".join(part for part in (*about, text(conditions(report))) if part)
    if report.interrupted:
        yield "**Interrupted**: only what was measured until then stands here."


def _table(report: Report, pairs: Sequence[tuple[Result, Finding]]) -> Iterator[str]:
    known, rows = acceptances(report), []
    for _, finding in pairs:
        remark = " *(accepted)*" if finding.fingerprint in known else ""
        rows.append((_linked(finding.code), text(finding.message) + remark, _where(finding, report)))
    if rows:
        yield _tabled(("check", "finding", "where"), rows)


def _linked(checks_code: str) -> str:
    """The code of a check, which leads to its page where that has an address."""
    address = address_of(checks_code)
    return f"[{code(checks_code)}]({address})" if address else code(checks_code)


def _card(result: Result, finding: Finding, manual: Manual | None, report: Report) -> str:
    name = manual.name if manual else result.name
    where = finding.where.module_text or finding.where.line_text
    place = f" in <code>{inside_html(where)}</code>" if where else ""
    facts = {
        "What": text(finding.message),
        "Where": _where(finding, report),
        "Measured": ", ".join(f"{text(key)} {code(value)}" for key, value in measured(finding)),
        "Control": text(finding.control),
        "Seen by": ", ".join(map(_linked, finding.also)),
        "Accepted": text(acceptances(report).get(finding.fingerprint, "")),
        "Matters": prose(manual.matters) if manual else "",
        "Fix": prose(manual.fix) if manual else "",
        "Page": _linked(finding.code) if address_of(finding.code) else "",
        "Fingerprint": code(finding.fingerprint),
    }
    parts = [f"<details><summary><b>{inside_html(finding.code)}</b> {inside_html(name)}{place}</summary>"]
    parts.append(_bulleted([f"**{label}**: {fact}" for label, fact in facts.items() if fact]))
    for key, block in long_evidence(finding):
        parts += [f"{text(key)}:", fenced(block)]
    parts += ["Reproduce:", fenced(finding.repro, "sh")] if finding.repro else []
    return "\n\n".join([*parts, "</details>"])


def _where(finding: Finding, report: Report) -> str:
    place = finding.where
    path = in_repository(place.file, report) or place.file if place.file else ""
    line = code(f"{path}:{place.line}") if path else ""
    function = f" in {code(place.function)}" if line and place.function else ""
    return ", ".join(part for part in (code(place.module_text), line + function) if part)


def _closing(report: Report) -> Iterator[str]:
    if again := command_line(report):
        yield f"Reproduce:\n\n{fenced(again, 'sh')}"
    if report.verdict is not None:
        yield from _policy_verdict(report.verdict)
    if report.proof is not None:
        yield from _proof(report.proof)
    unknown = [f"{text(codes)}: {text(reason)}" for codes, reason in missing(report)]
    if unknown:
        yield f"### Not checked\n\n{_bulleted(unknown)}"
    idle = [each for each in report.results if is_idle(each)]
    if idle:
        lines = [f"{code(each.code)} {text(each.name)}: {text(each.reason)}" for each in idle]
        counted = "1 check does" if len(idle) == 1 else f"{len(idle)} checks do"
        yield _folded(f"{counted} not apply to this subject", _bulleted(lines))
    if report.remarks:
        yield _folded("Notes", _bulleted([text(note) for note in report.remarks]))
    if checks := list(overview(report)):
        yield _folded("Checks", fenced("\n".join(checks)))
    yield _folded("Subject and environment", _tabled(("what", "which"), list(_facts(report))))


def _policy_verdict(policy_verdict: PolicyVerdict) -> Iterator[str]:
    if policy_verdict.limits:
        heading = ("limit", "measured", "bound", "kept", "because")
        yield f"### Limits\n\n{_tabled(heading, [_held(each) for each in policy_verdict.limits])}"
    if policy_verdict.baseline is not None:
        yield _compared(policy_verdict.baseline)
    if policy_verdict.required:
        rows = [_required(each) for each in policy_verdict.required]
        counted = f"{len(rows)} required check{'' if len(rows) == 1 else 's'}"
        yield _folded(counted, _tabled(("check", "stands", "because"), rows))


def _proof(proof: Proof) -> Iterator[str]:
    yield f"### Mutants\n\n{_bulleted([text(said) for said in (share(proof), uncounted(proof), terms(proof)) if said])}"
    rows = [
        (
            mutant.fate,
            code(f"{mutant.file}:{mutant.line}"),
            code(mutant.before),
            code(mutant.after),
            text(mutant.changed),
        )
        for mutant in unnoticed(proof)
    ]
    if rows:
        yield _tabled(("ended", "where", "line", "becomes", "changes"), rows)


def _held(held: LimitResult) -> tuple[str, ...]:
    unit = f" {held.unit}" if held.unit else ""
    measurement = "not measured" if held.measured is None else f"{scalar(held.measured)}{unit}"
    bound = f"{held.bound}{unit}" + (f" on {held.device}" if held.device else "")
    return (text(held.title), text(measurement), text(bound), held.kept, text(held.because))


def _required(required: Required) -> tuple[str, ...]:
    stands = f"{required.stands} ({text(required.verdict)})"
    stands += f": {text(required.reason)}" if required.reason else ""
    return (code(required.code), stands, text(required.because))


def _compared(compared: Compared) -> str:
    parts = {"new": compared.new, "fixed": compared.fixed, "unchanged": compared.unchanged}
    counted = [f"{len(found)} {word}" for word, found in parts.items()]
    named = [f"{word}: {code(each)}" for word, found in parts.items() for each in found]
    sentence = f"Against {code(compared.report)}: {', '.join(counted)}."
    return f"{sentence}\n\n{_bulleted(named)}" if named else sentence


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    identity: Mapping[str, Any] = report.subject.get("identity", {})
    words = {"command": report.command, "seconds": f"{report.seconds:.1f}", **report.environment}
    words |= {"options": " ".join(report.subject.get("options", ())), "dtype": report.subject.get("dtype", "")}
    for key, value in {**words, **identity}.items():
        if isinstance(value, (str, int, float)) and value != "":
            yield text(str(key).replace("_", " ")), code(scalar(value))


def _bulleted(lines: Sequence[str]) -> str:
    kept, _ = fitting([f"- {line}" for line in lines], _MOST_IN_A_LIST)
    more = [f"- and {len(lines) - len(kept)} more"] if len(kept) < len(lines) else []
    return "\n".join([*kept, *more])


def _tabled(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    kept, _ = fitting([f"| {' | '.join(cells)} |" for cells in rows], _MOST_IN_A_LIST)
    more = [f"\nand {len(rows) - len(kept)} more"] if len(kept) < len(rows) else []
    return "\n".join([f"| {' | '.join(heading)} |", f"| {' | '.join(['---'] * len(heading))} |", *kept, *more])


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
