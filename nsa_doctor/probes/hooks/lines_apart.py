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


def _lines(subject: Subject, call: Callable[[], object]) -> Lines:
    frames = FrameFilter(subject.packages)
    with reached_lines(lambda file: frames.rank(abspath(file)) == _OWN) as lines, suppress(SubjectFailedError):
        call()
    return lines


def _only(lines: Lines, others: Lines) -> Iterator[tuple[str, int]]:
    for file, numbers in lines.items():
        yield from ((file, number) for number in sorted(numbers - others.get(file, set())))
