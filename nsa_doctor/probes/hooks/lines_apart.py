"""The line of a subject that one of two calls runs and the other does not: a branch taken for a circumstance."""

import ast
import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from os.path import abspath

from torch import nn

from nsa_doctor.core.errors import SubjectFailedError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.reached_lines import Lines, reached_lines
from nsa_doctor.subject.contract import Subject

_ENVIRONMENT = re.compile(r"\benviron\b|\bgetenv\b")
_OWN = 3  # rank of the subject's own code
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def at_line_apart(subject: Subject, place: Place, other: Callable[[], object], plain: Callable[[], object]) -> Place:
    """The place, at the first line that the other call alone runs, or the plain one alone; as it is where none is."""
    here, there = (_lines(subject, call) for call in (other, plain))
    return _at_branch(place, here, there) or _at_branch(place, there, here) or place


def at_own_line(
    subject: Subject, root: nn.Module, place: Place, other: Callable[[], object], plain: Callable[[], object]
) -> Place:
    """The first line that the other call alone runs, in the module whose source holds it; the place where none is.

    For a call that does not come to its end: what it leaves out says nothing.
    """
    found = _at_branch(place, *(_lines(subject, call) for call in (other, plain)))
    return place if found is None else owned(subject, root, found)


def at_line_beside(subject: Subject, place: Place, lines: Lines, plain: Callable[[], object]) -> Place:
    """The place, at the first of these lines that the plain call does not run; as it is where it runs them all."""
    return _at_branch(place, lines, _lines(subject, plain)) or place


def owned(subject: Subject, root: nn.Module, place: Place) -> Place:
    """The place in the module whose source holds its line, where one does."""
    places = Places(FrameFilter(subject.packages))
    places.know(root)
    return places.owner(place)


def where_calls_part(subject: Subject, place: Place, one: Callable[[], object], other: Callable[[], object]) -> Place:
    """The first line that one of two calls alone runs, in the file where they part; the place where none is.

    Before that of a function that the other never enters, and not in one that asks for a variable of the environment:
    its callers are what parts by the answer.
    """
    here, there = (_lines(subject, call) for call in (one, other))
    ways = ((here, there), (there, here))
    apart = [each for lines, others in ways if (each := _parting(lines, others)) is not None]
    first = min((each for each in apart if each.file == apart[0].file), key=lambda each: each.line, default=None)
    return place if first is None else Place(file=first.file, line=first.line)


def _parting(lines: Lines, others: Lines) -> Place | None:
    asking = [Place(file=file, line=line) for file, line in _only(lines, others)]
    apart = [each for each in asking if not _asks_the_environment(each)]
    return next((each for each in apart if _is_entered(each, others)), next(iter(apart), None))


def _is_entered(place: Place, lines: Lines) -> bool:
    """Whether some of these lines lie in the function of that place."""
    around = _functions(place)[:1]
    return any(each.lineno < line <= (each.end_lineno or 0) for each in around for line in lines.get(place.file, ()))


def _asks_the_environment(place: Place) -> bool:
    around = _functions(place)[:1]
    lines = linecache.getlines(place.file)
    return any(_ENVIRONMENT.search("".join(lines[each.lineno - 1 : each.end_lineno])) for each in around)


def at_branch(
    subject: Subject,
    root: nn.Module,
    place: Place,
    other: Callable[[], object],
    plain: Callable[[], object],
    *,
    is_near: bool,
) -> Place:
    """A line that one of two calls alone runs: the place itself, the first of its function, or else the first there is.

    Of a function that one alone enters, the line of its file by which it does. The last in the module whose source
    holds it, and not where it `is_near`; the place where there is none.
    """
    here, there = (_lines(subject, call) for call in (other, plain))
    apart = here.get(place.file, set()) ^ there.get(place.file, set())
    body = next((each for each in _functions(place) if each.name == place.function), None)
    near = [line for line in apart if body and body.lineno <= line <= (body.end_lineno or 0)]
    if place.line in apart and not (_is_entered(place, here) and _is_entered(place, there)):
        ways = (_at_branch(place, *both) for both in ((here, there), (there, here)))
        parted = next((each for each in ways if each is not None and _is_entered(each, here)), None)
        if parted is not None and parted.file == place.file and _is_entered(parted, there):
            return replace(place, line=parted.line, function=parted.function)
    if place.line in apart or near:
        return place if place.line in apart else replace(place, line=min(near))
    if is_near:
        return place
    found = _at_branch(place, here, there) or _at_branch(place, there, here)
    return place if found is None else owned(subject, root, found)


def in_its_file(subject: Subject, place: Place, one: Callable[[], object], other: Callable[[], object]) -> Place:
    """The first line of the place's own file that one of two calls alone runs; the place where none is."""
    first = min(_apart(subject, place, one, other), default=None)
    if first is None:
        return place
    around = _functions(replace(place, line=first))
    return replace(place, line=first, function=around[0].name if around else "")


def _apart(subject: Subject, place: Place, one: Callable[[], object], other: Callable[[], object]) -> set[int]:
    here, there = (_lines(subject, call).get(place.file, set()) for call in (one, other))
    return here ^ there


def _functions(place: Place) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that a line lies in, the innermost first."""
    found = (each for each in _functions_of(place.file) if each.lineno <= place.line <= (each.end_lineno or 0))
    return sorted(found, key=_height)


@lru_cache(maxsize=64)
def _functions_of(file: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All of a source; it is asked for every line that runs."""
    tree = attempt(lambda: ast.parse("".join(linecache.getlines(file))))
    return [each for each in ast.walk(tree) if isinstance(each, _DEFINITIONS)] if isinstance(tree, ast.Module) else []


def _height(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno


def _lines(subject: Subject, call: Callable[[], object]) -> Lines:
    frames = FrameFilter(subject.packages)

    def is_own(file: str) -> bool:
        return not file.startswith("<") and frames.rank(abspath(file)) == _OWN

    with reached_lines(is_own) as lines, suppress(SubjectFailedError):
        call()
    return lines


def _at_branch(place: Place, lines: Lines, others: Lines) -> Place | None:
    """The place at the first line that runs in the one alone, before that of a function that the other never enters."""
    first: Place | None = None
    for file, line in _only(lines, others):
        around = _functions(Place(file=file, line=line))
        found = replace(place, file=file, line=line, function=around[0].name if around else "")
        first = first or found
        if _is_entered(found, others):
            return found
    return first


def _only(lines: Lines, others: Lines) -> Iterator[tuple[str, int]]:
    for file, numbers in lines.items():
        yield from ((file, number) for number in sorted(numbers - others.get(file, set())))
