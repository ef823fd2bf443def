"""What the examinations amount to: the rate of false GOs and of false alarms, with intervals, as text and numbers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.false_go.examination import Examined
from tests.false_go.fault import Fault
from tests.gallery.score import Share

DECISIONS = ("NO-GO", "UNKNOWN", "GO", "no answer")


@dataclass(frozen=True)
class Score:
    """The examinations of faults and of healthy subjects."""

    examined: tuple[Examined, ...]

    @property
    def faults(self) -> list[Examined]:
        return [each for each in self.examined if isinstance(each.subject, Fault)]

    @property
    def healthy(self) -> list[Examined]:
        return [each for each in self.examined if not isinstance(each.subject, Fault)]

    @property
    def false_goes(self) -> Share:
        return decided(self.faults, "GO")

    @property
    def false_alarms(self) -> Share:
        return decided(self.healthy, "NO-GO")

    def groups(self) -> dict[str, list[Examined]]:
        """The faults by the group of their condition."""
        found: dict[str, list[Examined]] = {}
        for each in self.faults:
            assert isinstance(each.subject, Fault)
            found.setdefault(each.subject.condition.group, []).append(each)
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "false_go": self.false_goes.as_json(),
            "false_no_go": self.false_alarms.as_json(),
            "faults": [each.as_json() for each in self.faults],
            "healthy": [each.as_json() for each in self.healthy],
        }


def decided(examined: Sequence[Examined], decision: str) -> Share:
    return Share(sum(each.decision == decision for each in examined), len(examined))


def row(each: Examined) -> str:
    """One line: seconds, decision, subject, and what the first finding says, or why there is no verdict."""
    first = each.findings[0] if each.findings else None
    where = f"{first.module or first.module_class or first.file}:{first.line}" if first else ""
    said = f"{first.code} {where} [{each.place or 'alarm'}]" if first else "; ".join(each.why[:2])
    return f"{each.seconds:6.1f} s  {each.decision:9}  {each.name}: {said}"


def render(score: Score) -> Iterator[str]:
    """The rates, the faults by group, then everything that came out as it should not."""
    for group, members in score.groups().items():
        counts = Counter(each.decision for each in members)
        yield f"{group:10}  " + "  ".join(f"{name} {counts[name]:3d}" for name in DECISIONS if counts[name])
    if score.faults:
        yield f"false GO         {score.false_goes}"
        yield f"faults UNKNOWN   {decided(score.faults, 'UNKNOWN')}"
        found = [each for each in score.faults if each.place]
        yield f"line named       {Share(sum(each.place == 'line' for each in found), len(found))}"
        yield f"module or line   {Share(sum(each.place != 'elsewhere' for each in found), len(found))}"
    if score.healthy:
        yield f"false NO-GO      {score.false_alarms}"
        yield f"healthy UNKNOWN  {decided(score.healthy, 'UNKNOWN')}"
    wrong = [each for each in score.faults if each.decision != "NO-GO"]
    wrong += [each for each in score.healthy if each.decision != "GO"]
    yield from (row(each) for each in sorted(wrong, key=lambda each: (each.decision, each.name)))


def page(score: Score, seed: int, policy: str) -> str:
    """The result as a section of docs/benchmarks.md."""
    lines = [
        "# Benchmarks of the doctor",
        "",
        "## False GOs",
        "",
        f"`make false-go`: `nsa-doctor go-no-go --policy {policy}` on {len(score.faults)} faults that show only",
        f"sometimes (seed {seed}) and {len(score.healthy)} healthy but odd subjects. Each fault is one condition and",
        "one effect, written as lines of code into one of seven healthy hosts. What no run in one environment can show",
        "(another number of threads, a second GPU) counts too.",
        "",
        "| fault shows by | faults | NO-GO | UNKNOWN | GO |",
        "|---|---|---|---|---|",
    ]
    for group, members in sorted(score.groups().items()):
        counts = Counter(each.decision for each in members)
        lines.append(f"| {group} | {len(members)} | {counts['NO-GO']} | {counts['UNKNOWN']} | {counts['GO']} |")
    unknown = decided(score.healthy, "UNKNOWN").hits
    lines += [
        "",
        f"- False GO: {_in_words(score.false_goes)}.",
        f"- False NO-GO: {_in_words(score.false_alarms)}; UNKNOWN: {unknown}.",
        "",
        "GO in spite of a fault: " + ", ".join(f"`{each.name}`" for each in score.faults if each.decision == "GO"),
        "",
    ]
    return "\n".join(lines)


def _in_words(share: Share) -> str:
    low, high = (round(100 * end) for end in share.interval)
    return f"{share.hits} of {share.total} (95 % interval {low} to {high} %)"
