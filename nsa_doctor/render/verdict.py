"""A policy's verdict as lines: the decision, why, which subject exactly, what was not checked, how to repeat it."""

from collections.abc import Iterator
from typing import Any

from nsa_doctor.core.finding import Report
from nsa_doctor.core.policy_verdict import LimitResult, PolicyVerdict
from nsa_doctor.core.text import plain_number
from nsa_doctor.render.overview import not_checked, overview
from nsa_doctor.render.power import power_texts
from nsa_doctor.render.proof import proof_lines

Line = tuple[str, str]  # a label, empty on further lines of the same, and a text to wrap beside it
_DIGITS = 12


def headline(report: Report, policy_verdict: PolicyVerdict) -> str:
    """`NO-GO by policy production`, with what is needed to find the policy again."""
    profile = report.options.get("profile")
    details = [f"profile {profile}"] if profile else []
    details += [f"file sha256 {policy_verdict.gate_digest[:_DIGITS]}"] if policy_verdict.gate_digest else []
    return f"{policy_verdict.decision} by policy {policy_verdict.gate}" + (
        f" ({', '.join(details)})" if details else ""
    )


def ruling_lines(report: Report, policy_verdict: PolicyVerdict) -> Iterator[Line]:
    """Everything below the headline, in the order a reader needs it."""
    yield from _labelled("why", policy_verdict.why)
    yield "", ""
    yield from examined_lines(report)
    if policy_verdict.limits:
        yield "", ""
        yield from _labelled("limits", map(limit_text, policy_verdict.limits))
    if policy_verdict.accepted or policy_verdict.baseline:
        yield "", ""
    yield from _labelled(
        "accepted", (f"{each.code} {each.fingerprint}: {each.because}" for each in policy_verdict.accepted)
    )
    if (baseline := policy_verdict.baseline) is not None:
        counts = f"{len(baseline.new)} new, {len(baseline.fixed)} fixed, {len(baseline.unchanged)} unchanged"
        yield "baseline", f"{baseline.report}: {counts}"
    yield "", ""
    if report.results:
        yield from _labelled("checks", overview(report))
    missing = list(not_checked(report))
    yield from _labelled("missing", missing or ["nothing: every check that was asked for ended"])
    if policy_verdict.power is not None:
        yield "", ""
        yield from _labelled("rests on", power_texts(policy_verdict.power))
    if report.proof is not None:
        yield "", ""
        yield from proof_lines(report.proof)
    if policy_verdict.again:
        yield "", ""
        yield "reproduce", policy_verdict.again


def examined_lines(report: Report) -> Iterator[Line]:
    """Which subject exactly, and on what."""
    subject, environment = report.subject, report.environment
    identity = subject.get("identity", {})
    description = subject.get("description", "")
    yield "examined", f"{subject['name']}: {description}" if description else str(subject["name"])
    flags = ", ".join(f"{name}={value}" for name, value in identity.get("flags", {}).items())
    rows = [
        ("config", f"hash {identity['configuration_hash']}" if identity.get("configuration_hash") else ""),
        ("version", ", ".join(filter(None, [identity.get("version"), _commit(identity)]))),
        ("declared", ", ".join(subject.get("spec", ()))),
        ("dtype", subject.get("dtype", "")),
        ("device", _device(environment)),
        ("flags", flags or "none set"),
        ("run", _run(report)),
    ]
    yield from ((label, str(text)) for label, text in rows if text)


def limit_text(held: LimitResult) -> str:
    """`kept: speed: 370 tokens/s, at least 300 on A100`."""
    unit = f" {held.unit}" if held.unit else ""
    measured = "not measured" if held.measured is None else f"{plain_number(held.measured)}{unit}"
    device = f" on {held.device}" if held.device else ""
    return f"{held.kept}: {held.title}: {measured}, {held.bound}{device}"


def _labelled(label: str, texts: Any) -> Iterator[Line]:
    for index, text in enumerate(texts):
        yield ("" if index else label), text


def _commit(identity: dict[str, Any]) -> str:
    return (
        f"commit {identity['commit']}"
        if identity.get("commit")
        else f"sources with hash {identity['sources']}"
        if identity.get("sources")
        else "not known"
    )


def _device(environment: Any) -> str:
    if "device" not in environment:
        return ""
    name, torch = (environment.get(key, "unknown") for key in ("device_name", "torch"))
    return f"{environment['device']} ({name}), torch {torch}"


def _run(report: Report) -> str:
    if not report.run:
        return ""
    device = report.run.get("device_name")
    return f"{report.run['folder']}" + (f" on {device}" if device else "")
