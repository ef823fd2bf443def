"""What examinations amount to: recall with intervals, false alarms, right modules and lines, as numbers and text."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nsa_doctor.core.families import in_order
from nsa_doctor.core.share import Share
from tests.gallery.cases import FAMILIES, HEALTHY
from tests.gallery.examination import FOUND, Examination

OWES_A_LINE = ("NAN", "HNG101", "HNG201", "GRD4")  # codes whose findings have to name the line


def share(examinations: Iterable[Examination], is_hit: Callable[[Examination], bool]) -> Share:
    hits = [is_hit(each) for each in examinations]
    return Share(sum(hits), len(hits))


@dataclass(frozen=True)
class Score:
    """The gallery's result; every list is of examinations."""

    examinations: tuple[Examination, ...]

    @property
    def bugs(self) -> list[Examination]:
        return [each for each in self.examinations if each.case.family != HEALTHY]

    @property
    def healthy(self) -> list[Examination]:
        return [each for each in self.examinations if each.case.family == HEALTHY]

    @property
    def found(self) -> list[Examination]:
        return [each for each in self.bugs if each.is_found]

    @property
    def wrongly_found(self) -> list[Examination]:
        return [each for each in self.found if not each.is_rightly_found]

    @property
    def alarms(self) -> list[Examination]:
        return [each for each in self.healthy if each.exit_code == FOUND or each.findings]

    def recall(self, family: str | None = None) -> Share:
        return share((each for each in self.bugs if family in (None, each.case.family)), lambda each: each.is_found)

    def rightly_found(self, family: str | None = None) -> Share:
        """Bugs of which some finding names a module at fault or the illness, out of all there are."""
        bugs = (each for each in self.bugs if family in (None, each.case.family))
        return share(bugs, lambda each: each.is_rightly_found)

    @property
    def by_family_of_checks(self) -> dict[str, Share]:
        """Bugs that are known by a code of a family, rightly found, out of all such bugs."""
        families = in_order(code[:3] for each in self.bugs for code in each.case.codes)
        return {
            family: share(
                (each for each in self.bugs if any(code.startswith(family) for code in each.case.codes)),
                lambda each: each.is_rightly_found,
            )
            for family in families
        }

    def shipped(self, version: str, commit: str, date: str) -> dict[str, Any]:
        """What the doctor says of itself in its reports: score.json."""
        corpus = f"{len(self.bugs)} planted bugs on six hosts, {len(self.healthy)} healthy odd subjects, quick profile"
        return {
            "version": version,
            "commit": commit,
            "date": date,
            "corpus": corpus,
            "recall": self.recall().as_json(),
            "false_alarms": Share(len(self.alarms), len(self.healthy)).as_json(),
            "families": {family: found.as_json() for family, found in self.by_family_of_checks.items()},
        }

    @property
    def right_module(self) -> Share:
        return share(self.found, lambda each: each.names_module)

    @property
    def owing_a_line(self) -> list[Examination]:
        """Found bugs with a marked line whose first finding is of a kind that names one."""
        return [each for each in self.found if each.case.lines and each.findings[0].code.startswith(OWES_A_LINE)]

    @property
    def right_line(self) -> Share:
        return share(self.owing_a_line, lambda each: each.names_line)

    @property
    def right_line_of_all(self) -> Share:
        return share((each for each in self.found if each.case.lines), lambda each: each.names_line)

    @property
    def findings_per_bug(self) -> list[int]:
        return [len(each.findings) for each in self.found]

    def as_json(self) -> dict[str, Any]:
        counts = self.findings_per_bug
        return {
            "recall": {family: self.recall(family).as_json() for family in FAMILIES if self.recall(family).total},
            "recall_total": self.recall().as_json(),
            "rightly_found": {
                family: self.rightly_found(family).as_json() for family in FAMILIES if self.recall(family).total
            },
            "rightly_found_total": self.rightly_found().as_json(),
            "false_alarms": Share(len(self.alarms), len(self.healthy)).as_json(),
            "right_module": self.right_module.as_json(),
            "right_line": self.right_line.as_json(),
            "right_line_of_all": self.right_line_of_all.as_json(),
            "findings_per_bug": {"max": max(counts, default=0), "mean": sum(counts) / len(counts) if counts else 0.0},
            "seconds": {each.case.spec: round(each.seconds, 1) for each in self.examinations},
            "healthy_verdicts": _counted(each.exit_code for each in self.healthy),
            "missed": [_record(each) for each in self.bugs if not each.is_found],
            "alarms": [_record(each) for each in self.alarms],
            "wrong_illness": [_record(each) for each in self.wrongly_found],
            "wrong_module": [_record(each) for each in self.found if not each.names_module],
            "examinations": [_record(each) for each in self.examinations],
        }


def _counted(exit_codes: Iterable[int | None]) -> dict[str, int]:
    """How many runs ended with each exit code."""
    return dict(Counter("no answer" if code is None else str(code) for code in exit_codes))


def _record(each: Examination) -> dict[str, Any]:
    return {
        "case": each.case.spec,
        "exit_code": each.exit_code,
        "modules_at_fault": list(each.case.modules),
        "codes": sorted(each.case.codes),
        "is_rightly_found": each.is_rightly_found,
        "findings": [vars(found) for found in each.findings],
        "trouble": list(each.trouble),
    }


def render(score: Score) -> Iterator[str]:
    """The score as lines of text: the table, then every miss, alarm and wrong place."""
    width = max(map(len, FAMILIES))
    for family in FAMILIES:
        yield f"recall  {family:<{width}}  {score.recall(family)}"
    yield f"recall  {'all':<{width}}  {score.recall()}"
    for family in FAMILIES:
        yield f"rightly {family:<{width}}  {score.rightly_found(family)}"
    yield f"rightly {'all':<{width}}  {score.rightly_found()}"
    yield f"false alarms in healthy runs    {Share(len(score.alarms), len(score.healthy))}"
    yield f"first finding, right module     {score.right_module}"
    yield f"right line where one is expected    {score.right_line}"
    yield f"right line of all               {score.right_line_of_all}"
    counts = score.findings_per_bug
    if counts:
        yield f"findings per bug                {sum(counts) / len(counts):.2f} in the mean, {max(counts)} at most"
    yield from _times(score.examinations)
    yield from _listed("missed", [each for each in score.bugs if not each.is_found])
    yield from _listed("false alarms", score.alarms)
    yield from _listed(
        "no verdict on a healthy subject", [each for each in score.healthy if each.exit_code not in (0, 1)]
    )
    yield from _listed("found, but neither module nor illness is right", score.wrongly_found)
    yield from _listed("wrong module", [each for each in score.found if not each.names_module])
    yield from _listed(
        "wrong line", [each for each in score.found if each.case.lines and not each.names_line], short=True
    )
    yield from _listed("more than three findings", [each for each in score.found if len(each.findings) > 3])


def _times(examinations: Sequence[Examination]) -> Iterator[str]:
    seconds = sorted(each.seconds for each in examinations)
    if seconds:
        slowest = max(examinations, key=lambda each: each.seconds).case.name
        mean = sum(seconds) / len(seconds)
        yield f"seconds per subject             {mean:.1f} in the mean, {seconds[-1]:.1f} at most ({slowest})"


def _listed(title: str, examinations: Sequence[Examination], short: bool = False) -> Iterator[str]:
    if not examinations:
        return
    yield f"\n{title}: {len(examinations)}"
    for each in examinations:
        code = "no answer" if each.exit_code is None else f"exit {each.exit_code}"
        at_fault = f", at fault {' or '.join(map(repr, each.case.modules))}" if each.case.modules else ""
        marked = f", marked lines {', '.join(map(str, each.case.lines))}" if short else ""
        yield f"  {each.case.family}/{each.case.name} ({code}{marked or at_fault})"
        for found in each.findings[: 1 if short else None]:
            where = f"{found.file}:{found.line}" if found.file else "no line"
            also = f" (also {', '.join(found.also)})" if found.also else ""
            yield f"      {found.code}{also} at {found.module!r}, {where}: {found.message}"
        yield from (f"      {trouble}" for trouble in each.trouble)
