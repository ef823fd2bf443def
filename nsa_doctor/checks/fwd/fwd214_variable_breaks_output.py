"""FWD214 variable-breaks-output

Detects: a variable of the environment that the subject reads and that makes its output not finite, its rows mix, later
tokens change earlier ones, or its gradients others where the output is the same. Another output alone is a note.
Matters: the machine that trains has another environment than the one that tests.
Fix: look at the line that reads it for what is done under the value named; a setting comes as an argument.

Example:
    # faulty
    if "MIXER_FAST" in os.environ:
        y = y.detach()
    # correct
    def __init__(self, is_fast: bool = False): ...
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from nsa_doctor.checks._shared.behaviour import Behaviour
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.environment_reads import environment_reads, environment_with, other_values
from nsa_doctor.probes.hooks.lines_apart import where_calls_part
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_ANOTHER_SEED, _LENGTH = 31337, 37


def run(subject: Subject) -> Iterator[Finding | Note]:
    with environment_reads(FrameFilter(subject.packages)) as read:
        Behaviour.of(subject)
    for name, place in read.items():
        for value in other_values(name):
            setting = f"{name} unset" if value is None else f"{name}={value}"
            try:
                wrong, changed = _compared(subject, name, value)
                other = wrong and _compared(replace(subject, seed=subject.seed + _ANOTHER_SEED), name, value)[0]
            except SubjectFailedError as failure:
                yield Note(message=f"{setting} makes it raise {failure}", where=place)
                continue
            if wrong and other:
                yield _finding(subject, place, _apart(subject, place, name, value), setting, wrong)
                return
            if changed:
                yield Note(message=f"{setting} {changed}; all else was examined without it", where=place)


def _compared(subject: Subject, name: str, value: str | None) -> tuple[str, str]:
    """What is wrong under that value, and how it changes the output."""
    with unobserved():  # what is seen under another environment is reported here, with the variable
        plain = Behaviour.of(subject)
        with environment_with(name, value):
            found = Behaviour.of(subject)
    return found.wrong(plain), found.change(plain)


def _apart(subject: Subject, read: Place, name: str, value: str | None) -> Place:
    """Where calls under that value part from those without it, or else where it is read."""

    def call(holding: AbstractContextManager[None]) -> None:
        with unobserved(), holding:
            sp = comparable_module(subject)
            sp(sp.input(min(_LENGTH, subject.max_length)))

    return where_calls_part(subject, read, lambda: call(environment_with(name, value)), lambda: call(nullcontext()))


def _finding(subject: Subject, read: Place, place: Place, setting: str, wrong: str) -> Finding:
    return Finding(
        message=f"{setting}, which is read at {Path(read.file).name}:{read.line}, {wrong}",
        where=place,
        evidence={"variable": setting},
        repro=command_for(subject, "FWD214"),
    )


def planted(subject: Subject) -> Subject:
    def mixes_rows_where_set(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output.roll(1, 0) if os.environ.get("MIXES_ROWS") == "1" else output

    return replace(subject, forward=mixes_rows_where_set)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD201", "FWD206", "NAN101", "GRD101"),
    priority=428,
)
