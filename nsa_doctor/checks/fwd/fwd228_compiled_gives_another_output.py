"""FWD228 compiled-gives-another-output

Detects: a module that is right as it is written, and whose output or gradients are others once torch.compile has made
graphs of it, at the first length or at the next; its own code that raises there alone. What torch does not compile is
a note.
Matters: training and serving run compiled, and tests run what is written.
Fix: one path for both, or a test that compares them; declare what an operator of your own writes into, and give it a
fake implementation and a backward that follow the real ones.

Example:
    # faulty
    scores = q @ k.mT if torch.compiler.is_compiling() else q @ k.mT * self.scale
    # correct
    scores = q @ k.mT * self.scale
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.checks._shared.compiled import cause_of_its_own, failure_of, place_of_departure, wrong_where_compiled
from nsa_doctor.checks._shared.wrong_copy import bench, expected_gradients
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.compiled_copy import CompiledCopy, compiled_copy, compiling, speaks_of_the_compiler
from nsa_doctor.probes.numerics.compare import Baseline
from nsa_doctor.subject.contract import Subject

_FIRST_LENGTH = 19
_MOST_OPERATIONS = 400  # of which there is time for more than one graph in a minute


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.profile != "full" and not speaks_of_the_compiler(subject.packages):
        raise NotApplicableError("its code neither asks whether it is compiled nor has operators of its own")
    copied: CompiledCopy | str | None = None
    with compiling(subject.packages):
        for number, (length, has_backward) in enumerate(_trials(subject)):
            base = bench(subject, length)
            expected = expected_gradients(subject, length) if has_backward else None
            copied = copied or compiled_copy(base.built)
            if isinstance(copied, str):
                raise NotComparableError(copied)
            failure = failure_of(base, copied, expected)
            found = None if failure else wrong_where_compiled(base, copied, expected)
            if failure is not None:
                yield _failing(base, failure)
            elif found is not None:
                yield replace(found, where=place_of_departure(base, copied, expected), repro=_again(subject))
            elif not copied.num_graphs:
                raise NotApplicableError(f"torch.compile makes no graph of {subject.name}")
            elif not number and subject.profile != "full" and copied.num_operations > _MOST_OPERATIONS:
                yield Note(message=f"it has {copied.num_operations} operations: only its output at S={length} compared")
            else:
                continue
            return


def _trials(subject: Subject) -> list[tuple[int, bool]]:
    """Lengths, and whether with the backward pass: graphs of any length take the most time, with theirs above all."""
    short, long = (min(each, subject.max_length) for each in (_FIRST_LENGTH, odd_lengths(subject)[0]))
    trials = [(short, False), (short, True), (long, False), (long, True)]
    return trials if subject.profile == "full" else trials[:-1]


def _failing(base: Baseline, failure: SubjectFailedError) -> Finding | Note:
    """A finding where a line of the subject's own raised; else torch does not compile it, which is said."""
    cause = cause_of_its_own(failure.caught.error, base.built)
    if cause is None:
        return Note(message=f"torch.compile does not serve it: {failure.caught.sentence}")
    sentence, where = cause
    message = f"in {failure.phase} of torch.compile of it, and nowhere else, it raises {sentence}"
    evidence = {"length": base.x.shape[1]}
    return Finding(message=message, where=where, evidence=evidence, repro=_again(base.built.subject))


def _again(subject: Subject) -> str:
    return command_for(subject, "FWD228")


def planted(subject: Subject) -> Subject:
    class ShiftedWhereCompiled(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.layer = subject.build(seed)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.layer, x)
            return output * 1.01 if torch.compiler.is_compiling() else output

    return replace(subject, build=ShiftedWhereCompiled, forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "FWD210", "NAN101"),
    explained_by=("FWD206", "FWD210"),
    priority=446,
)
