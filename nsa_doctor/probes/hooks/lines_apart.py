"""The line of a subject that one of two calls runs and the other does not: a branch taken for a circumstance."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from os.path import abspath

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.reached_lines import Lines, reached_lines
from nsa_doctor.subject.contract import Subject

_OWN = 3  # rank of the subject's own code


def at_line_apart(subject: Subject, place: Place, other: Callable[[], object], plain: Callable[[], object]) -> Place:
    """The place, at the first line that the other call alone runs, or the plain one alone; as it is where none is."""
    here, there = (_lines(subject, call) for call in (other, plain))
    apart = next(_only(here, there), None) or next(_only(there, here), None)
    return place if apart is None else replace(place, file=apart[0], line=apart[1], function="")


def where_calls_part(subject: Subject, place: Place, one: Callable[[], object], other: Callable[[], object]) -> Place:
    """The first line that one of two calls alone runs, in the file where they part; the place where none is."""
    here, there = (_lines(subject, call) for call in (one, other))
    apart = [each for each in (next(_only(here, there), None), next(_only(there, here), None)) if each is not None]
    first = min((each for each in apart if each[0] == apart[0][0]), default=None)
    return place if first is None else Place(file=first[0], line=first[1])


def _lines(subject: Subject, call: Callable[[], object]) -> Lines:
    frames = FrameFilter(subject.packages)

    def is_own(file: str) -> bool:
        return not file.startswith("<") and frames.rank(abspath(file)) == _OWN

    with reached_lines(is_own) as lines, suppress(SubjectFailedError):
        call()
    return lines


def _only(lines: Lines, others: Lines) -> Iterator[tuple[str, int]]:
    for file, numbers in lines.items():
        yield from ((file, number) for number in sorted(numbers - others.get(file, set())))
