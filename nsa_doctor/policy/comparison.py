"""What `nsa-doctor compare` makes of two reports."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, TypeGuard

from nsa_doctor.core.comparison import Comparison, Slower
from nsa_doctor.core.finding import Finding, Report, Verdict
from nsa_doctor.core.text import escaped, plain_number, short_number
from nsa_doctor.policy.baseline import compare, mismatch

_SLOWER = 1.25  # the fastest call of the later report against the median of the earlier one's
_FEWEST_POINTS = 4  # of a sweep, which times one call each
_MEASURED_TWICE = ("device", "device_name", "torch")
_COUNTS = {"operations": "operations", "waits": "waits for the device", "peak_bytes": "peak bytes"}
_LARGER = 1.05
_TIMED_ONCE = (
    "a sweep times each call once: other programs on the machine make it slower too; `nsa-doctor throughput` "
    "repeats calls, by turns with dense attention"
)


def compare_reports(old: Report, new: Report, old_name: str, new_name: str) -> Comparison:
    """The later report against the earlier one, by fingerprints and by times of calls that both have."""
    compared = compare(new, old, old_name)
    before, after, timed_once = _by_fingerprint(old), _by_fingerprint(new), tuple(_slower_sweep(old, new))
    gone = tuple(each for each in before if each not in after and each not in compared.fixed)
    return Comparison(
        subject=str(new.subject.get("name", "")),
        old_name=old_name,
        new_name=new_name,
        old=old.decision,
        new=new.decision,
        appeared=tuple(after[each] for each in compared.new if each in after),
        fixed=tuple(before[each] for each in compared.fixed if each in before),
        still=tuple(after[each] for each in compared.unchanged if each in after),
        unseen=tuple(before[each] for each in gone if each not in compared.unchanged),
        unanswered=tuple(_unanswered(old, new)),
        further=(
            sum(each not in after for each in compared.new),
            sum(each not in before for each in compared.fixed),
            sum(each not in after for each in compared.unchanged),
        ),
        slower=(*_slower_calls(old, new), *timed_once),
        remarks=tuple(mismatch(new, old, old_name)),
        notes=(*_notes(old, new), *([_TIMED_ONCE] if timed_once else [])),
    )


def _by_fingerprint(report: Report) -> dict[str, Finding]:
    return {finding.fingerprint: finding for finding in reversed(report.findings)}


def _unanswered(old: Report, new: Report) -> Iterator[str]:
    """Codes of checks that passed, and of which the later report has neither a pass nor a finding."""
    answered = {each.code for each in new.results if each.verdict in (Verdict.PASS, Verdict.FAIL, Verdict.TIMEOUT)}
    for result in old.results:
        if result.verdict is Verdict.PASS and result.code not in answered:
            yield result.code


def _slower_calls(old: Report, new: Report) -> Iterator[Slower]:
    """Of `throughput`: passes of which even the fastest takes longer than half of the earlier ones, and counts."""
    before = {row["length"]: row for row in _rows(old)}
    for row in _rows(new):
        earlier = before.get(row["length"])
        if earlier is None:
            continue
        for name, title in {"forward": "forward pass", "train": "training step"}.items():
            slow, fast = _typical(row, name), _typical(earlier, name)
            if slow is not None and fast is not None and _is_slower(row, earlier, name):
                yield _grown(f"{title} at S={row['length']}", fast, slow, "s")
        for name, title in _COUNTS.items():
            then, now = earlier.get(name), row.get(name)
            if _is_number(then) and _is_number(now) and now > _LARGER * then and now > then:
                yield _grown(f"{title} at S={row['length']}", then, now, "")


def _is_slower(row: Mapping[str, Any], earlier: Mapping[str, Any], name: str) -> bool:
    """Whether even the fastest call takes longer than half of the earlier ones, and that beside dense attention too.

    Dense attention was timed by turns with it, under the same load of the machine.
    """
    typical, slow = _typical(earlier, name), _typical(row, name)
    earlier_dense, dense = _typical(earlier, f"dense_{name}"), _typical(row, f"dense_{name}")
    if typical is None or not min(_times(row.get(name))) > _SLOWER * typical:
        return False
    return not (dense and earlier_dense and slow) or slow / dense > _SLOWER * typical / earlier_dense


def _typical(row: Mapping[str, Any], name: str) -> float | None:
    times = _times(row.get(name))
    return median(times) if times else None


def _rows(report: Report) -> list[Mapping[str, Any]]:
    rows = report.throughput.get("rows", ())
    return [row for row in rows if isinstance(row, Mapping) and isinstance(row.get("length"), int)]


def _times(values: Any) -> list[float]:
    return [each for each in values or () if _is_number(each)] if isinstance(values, (list, tuple)) else []


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _slower_sweep(old: Report, new: Report) -> Iterator[Slower]:
    """Of a sweep, which times one call a point: modes that are slower at every point that both have."""
    before = {each.point: each.seconds for each in old.measurements}
    ratios: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for each in new.measurements:
        then, now = before.get(each.point), each.seconds
        if then and now:
            ratios.setdefault((each.point.mode, each.point.dtype), []).append((now / then, then, now))
    for (mode, dtype), found in ratios.items():
        least = min(found)[0]
        if len(found) >= _FEWEST_POINTS and least > _SLOWER:
            _, then, now = max(found, key=lambda each: each[1])
            yield _grown(f"{mode} in {dtype} at each of {len(found)} points, at the longest", then, now, "s")


def _grown(what: str, before: float, after: float, unit: str) -> Slower:
    write = short_number if unit else plain_number
    texts = [f"{write(value)}{' ' if unit else ''}{unit}" for value in (before, after)]
    return Slower(what=what, before=texts[0], after=texts[1], ratio=after / before if before else float("inf"))


def _notes(old: Report, new: Report) -> Iterator[str]:
    for name in _MEASURED_TWICE:
        then, now = old.environment.get(name), new.environment.get(name)
        if then != now:
            yield escaped(f"{name.replace('_', ' ')} {now}, was {then}: times are of different conditions")
    for report, word in ((old, "earlier"), (new, "later")):
        if report.interrupted:
            yield f"the {word} report was interrupted"
    for name in ("profile", "seed"):
        then, now = old.options.get(name), new.options.get(name)
        if then != now and then is not None and now is not None:
            yield escaped(f"{name} {now}, was {then}")
