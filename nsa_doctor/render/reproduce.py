"""The command line that asks for a report's facts again, as far as the report says how it was asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from nsa_doctor.core import registry
from nsa_doctor.core.check import PROFILES, Profile
from nsa_doctor.core.finding import Report
from nsa_doctor.core.reproduce import arguments, reproduce


def command_line(report: Report) -> str:
    """One line to paste; nothing where the report does not tell enough."""
    if report.verdict is not None and report.verdict.again:
        return report.verdict.again
    asked, options = _ASKED.get(report.command), report.options
    words = None if asked is None else asked(report)
    if words is None or "seed" not in options:
        return ""
    named = tuple(map(str, report.subject.get("options", ())))
    words = list(arguments(named, words)) if report.command == "gate-stats" else [*words, *named]
    seconds = options.get("timeout_seconds")
    return reproduce(
        report.command,
        words,
        dtype=options.get("dtype") if "--dtype" not in named else None,
        device=options.get("device"),
        timeout=float(seconds) if isinstance(seconds, int | float) else None,
        seed=options["seed"],
    )


def _run(report: Report) -> list[str] | None:
    checks, profile = report.options.get("checks", ()), report.options.get("profile")
    if not checks or profile not in PROFILES:
        return None
    usual = [entry.manual.code for entry in registry.select((), (), cast(Profile, profile))]
    return [*_given("--select", ",".join(checks), usual=",".join(usual)), "--profile", profile]


def _sweep(report: Report) -> list[str] | None:
    options, words = report.options, _lengths(report)
    if words is None:
        return None
    words += _given("--dtype", _listed(options, "dtypes"), usual=report.subject.get("dtype"))
    words += _given("--values", _listed(options, "values"), usual="normal")
    words += ["--boundaries"] if options.get("boundaries") else []
    return words + (["--forward-only"] if options.get("forward_only") else [])


def _throughput(report: Report) -> list[str] | None:
    words, options = _lengths(report), report.options
    if words is None:
        return None
    return [*words, *_given("--repeats", options.get("repeats"), 7), *_given("--floors", options.get("floors"))]


def _fuzz(report: Report) -> list[str] | None:
    targets, examples = report.options.get("targets", ()), report.options.get("examples")
    others = _given("--minutes", report.options.get("minutes")) + _given("--impl", report.options.get("impl"))
    if not targets or report.options.get("replay") is not None:
        return None
    return ["all" if len(targets) > 1 else targets[0], *_given("--examples", examples), *others]


def _gate_stats(report: Report) -> list[str]:
    options = report.options
    words = _given("--pattern", options.get("pattern")) + _given("--activation", options.get("activation"))
    return words + _given("--num-branches", options.get("num_branches"), usual=3)


def _lengths(report: Report) -> list[str] | None:
    return _given("--seq", _listed(report.options, "lengths")) or None


_ASKED: Mapping[str, Callable[[Report], list[str] | None]] = {
    "run": _run,
    "sweep": _sweep,
    "anomaly": _lengths,
    "throughput": _throughput,
    "fuzz": _fuzz,
    "gate-stats": _gate_stats,
}


def _listed(options: Mapping[str, Any], name: str) -> str:
    values: Sequence[Any] = options.get(name, ())
    return ",".join(map(str, values))


def _given(option: str, value: Any, usual: Any = None) -> list[str]:
    return [] if value in (None, "", usual) else [option, str(value)]
