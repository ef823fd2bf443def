"""What a verdict rests on: how much was examined, the doctor's measured recall for it, and what no check looked at."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nsa_doctor.core.check import Kind
from nsa_doctor.core.families import FAMILIES, in_order
from nsa_doctor.core.finding import Report, Result, Verdict
from nsa_doctor.core.own_score import OwnScore, Rate
from nsa_doctor.core.power import FamilyRecall, Power

_ENDED = (Verdict.PASS, Verdict.FAIL)
_GIVEN: Mapping[Kind, str] = {"run": "training runs", "data": "data", "checkpoint": "checkpoints"}
_NOT_SCORED = {"FUN"}  # the score is of modules
_CUT = ("not finished within", "given up after", "not tried again", "left out:")  # how reasons of a lack of time begin
_ORDER = ("float64", "float32", "bfloat16", "float16", "train", "eval", "no_grad")


def power_of(report: Report, given: Collection[Kind], score: OwnScore) -> Power:
    """Of the results and measurements of a report, and of what was given beside the subject."""
    ended = [result for result in report.results if result.verdict in _ENDED]
    examined = [result.examined for result in report.results]
    points = [each.point for each in report.measurements if each.trouble is None]
    tried = [(point.length, point.dtype, point.mode) for point in points]
    families = in_order(result.code[:3] for result in ended)
    seed = report.options.get("seed")
    return Power(
        checks=len(ended),
        calls=len(points) + sum(each.get("calls", 0) for each in examined),
        lengths=tuple(sorted(_merged(examined, "lengths", (length for length, _, _ in tried)))),
        dtypes=_ordered(_merged(examined, "dtypes", (dtype for _, dtype, _ in tried))),
        modes=_ordered(_merged(examined, "modes", (mode for _, _, mode in tried))),
        batch_sizes=tuple(sorted(_merged(examined, "batch_sizes", [1] if points else []))),
        seeds=tuple(sorted(_merged(examined, "seeds", [] if seed is None else [seed]))),
        device=str(report.environment.get("device", "")),
        recall=(
            *(_recall(name, None if set(families) <= _NOT_SCORED else rate) for name, rate in _of_all(score)),
            *(_recall(family, score.families.get(family)) for family in families),
        ),
        doctor=score.doctor,
        measured_on=score.date,
        not_examined=tuple(_not_examined(report.results, given)),
        cut_short=tuple(_cut_short(report)),
    )


def _of_all(score: OwnScore) -> Iterator[tuple[str, Rate]]:
    yield "all", score.recall
    if score.unseen is not None:
        yield "unseen", score.unseen


def _merged(examined: Iterable[Mapping[str, Any]], name: str, more: Iterable[Any]) -> set[Any]:
    return {*more, *(value for each in examined for value in each.get(name, ()))}


def _ordered(words: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(words, key=lambda word: (_ORDER.index(word) if word in _ORDER else len(_ORDER), word)))


def _recall(family: str, rate: Rate | None) -> FamilyRecall:
    if rate is None:
        return FamilyRecall(family=family, hits=0, of=0, low=0.0, high=1.0)
    low, high = rate.low / 100, rate.high / 100
    return FamilyRecall(family=family, hits=rate.hits, of=rate.of, low=low, high=high, measured=rate.measured)


def _not_examined(results: Iterable[Result], given: Collection[Kind]) -> Iterator[str]:
    """What was not handed over, and families of checks of which nothing applies to the subject."""
    yield from (name for kind, name in _GIVEN.items() if kind not in given)
    results = list(results)
    for family in in_order(result.code[:3] for result in results):
        own = [result for result in results if result.code.startswith(family)]
        if all(result.verdict is Verdict.SKIP and not result.is_required for result in own):
            yield f"{FAMILIES.get(family, family)} (not offered)"


def _cut_short(report: Report) -> Iterator[str]:
    """What was not reached: for lack of time, or since the subject serves no more."""
    for result in report.results:
        if result.reason.startswith(_CUT):
            yield f"{result.code}: {result.reason}"
    yield from (note for note in report.notes if note.startswith("examined up to"))
