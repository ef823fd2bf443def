"""The function as `torch.compile` makes it: its answer, or in which words there is none."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.calling import Answer, DeviceLostError, ask
from nsa_doctor.subject.function import FunctionSubject, Problem


def compiled(subject: FunctionSubject) -> FunctionSubject:
    """The same function compiled for the shape of each call, without threads of the compiler's own."""
    with _quiet():
        twin = torch.compile(subject.function, dynamic=False, options={"compile_threads": 1})
    return replace(subject, function=twin, known={})


def answer_of(twin: FunctionSubject, problem: Problem) -> Answer | str:
    """What the compiled function answers; why torch does not compile it, in a sentence."""
    with _quiet():
        asked = attempt(lambda: ask(twin, problem))
    if isinstance(asked, Caught):
        if isinstance(asked.error, DeviceLostError):
            raise asked.error
        return asked.sentence
    return asked if asked.failure is None else asked.failure.sentence


@contextmanager
def _quiet() -> Iterator[None]:
    """A region without torch's warnings of its own compiler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
