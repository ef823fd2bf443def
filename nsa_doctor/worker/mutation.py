"""The child's part of mutation testing: which lines a subject reaches, and what a change of them does to it."""

import sys
from collections.abc import Callable, Collection, Sequence
from os.path import abspath, dirname
from pathlib import Path
from typing import Any

from nsa_doctor.core.errors import SubjectFailedError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.reached_lines import reached_lines
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.numerics.effect import Effect, compared, places, record, terms_of, values_at
from nsa_doctor.subject.contract import Subject

_OWN = 3  # rank of the subject's own code
_NEVER = {"torch", "builtins", ""}


def reached_by(
    subject: Subject,
    lengths: Sequence[int],
    package: Sequence[str],
    modules_before: Collection[str],
    calling: Callable[[int], None],
) -> dict[str, Any]:
    """`lines` by file that building, passes and decoding reach; `left_out` are files of the doctor's own use.

    The subject's own files are those of the package that the command line names, of the package of the subject's
    class, and what lies beside them.
    """
    frames = FrameFilter((*package, *subject.packages))
    with preserved_state(), reached_lines(lambda file: frames.rank(abspath(file)) == _OWN) as lines:
        terms = terms_of(subject)
        for place in places(subject, lengths):
            calling(place.length)
            attempt(lambda place=place: values_at(subject, place, terms))
    names = {abspath(file): name for name, file in _files().items()}
    own = {*package, _package_of(subject)} - _NEVER
    beside = tuple(f"{dirname(file)}/" for file, name in names.items() if name in own)
    found = {abspath(file): sorted(numbers) for file, numbers in lines.items() if numbers}
    mine = {file: each for file, each in found.items() if _top(names.get(file, "")) in own or file.startswith(beside)}
    used = [file for file in mine if names.get(file) in modules_before]
    return {"lines": {file: each for file, each in mine.items() if file not in used}, "left_out": used}


def effect_of(
    subject: Subject, file: str, lengths: Sequence[int] | None, calling: Callable[[int], None]
) -> dict[str, Any]:
    """Write to a file what the subject gives at these lengths; without any, how it differs from what is there."""
    effect: Effect | None = None
    with preserved_state():
        steps = compared(subject, Path(file)) if lengths is None else record(subject, lengths, Path(file))
        try:
            for step in steps:
                if isinstance(step, Effect):
                    effect = step
                else:
                    calling(step.length)
        except SubjectFailedError as failure:
            effect = Effect("raises", failure.caught.sentence)
    return {"kind": "recorded", "said": ""} if effect is None else {"kind": effect.kind, "said": effect.said}


def _files() -> dict[str, str]:
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.copy().items()}
    return {name: file for name, file in files.items() if isinstance(file, str)}


def _package_of(subject: Subject) -> str:
    """The top-level package of the subject's class."""
    module = attempt(lambda: subject.build(subject.seed))
    return _top(type(module).__module__)


def _top(name: str) -> str:
    return name.partition(".")[0]
