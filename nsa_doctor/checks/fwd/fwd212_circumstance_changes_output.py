"""FWD212 circumstance-changes-output

Detects: an output in eval() that changes with what must not matter: inference_mode(), anomaly or deterministic mode, a
frozen model, gradients held, an input that requires a gradient, the thread, torch's threads or its default dtype, and
what torch answers when it is asked whether it compiles or traces, for threads, or for a process group of one process.
Matters: what was examined, trained and served are three models, and only the one that nobody looks at is wrong.
Fix: look at the line named for a branch on a mode of torch's, on `requires_grad`, `.grad` or on a thread.

Example:
    # faulty
    if torch.is_inference_mode_enabled():
        q = q.bfloat16()
    # correct
    q = q.to(k.dtype)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import (
    branch_finding,
    confirmed,
    failing_finding,
    odd_lengths,
    one,
    went_wrong,
)
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.circumstances import Circumstance, circumstances, without_gradients
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.compare import Baseline, Departure, baseline
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_ROWS = 3  # of two, a mix-up in two layers of a model undoes itself
_FAULTS = ("raised", "wrong_shape")


def run(subject: Subject) -> Iterator[Finding]:
    length = odd_lengths(subject)[0]
    built = comparable_module(subject)
    base = baseline(built, built.input(length, batch=_ROWS))
    suspects = (each for each in circumstances(subject, built.dtype) if _may_differ(base, each))
    yield from one(_examine(subject, length, each) for each in suspects)


def _may_differ(base: Baseline, under: Circumstance) -> bool:
    """Whether it is worth a look on a module of its own: on this one, earlier circumstances may have left something."""
    with unobserved():
        try:
            return _departure(base, under) is not None
        except SubjectFailedError:
            return True


def _examine(subject: Subject, length: int, under: Circumstance) -> Finding | None:
    words = under.words
    try:
        found, failure = confirmed(subject, lambda subject: _changed(subject, length, under)), None
    except SubjectFailedError as error:
        found, failure = None, error
    built = comparable_module(subject)
    x = built.input(length, batch=_ROWS)
    if found is not None:
        alike = baseline(built, x).departure(under.without(built, x)) is None  # else it is gradients that change it
        plain = under.without if alike else without_gradients
        message = f"{words} gives another output than eval() under no_grad without it at S={length}"
        ways = (lambda: under.call(built, x)), (lambda: plain(built, x))
        return branch_finding(built, "FWD212", message, ways, found, length=length, circumstance=words)
    trouble = trouble_of(failure, subject.packages) if failure else None
    if trouble is None or failure is None or trouble.kind not in _FAULTS or under.may_be_refused(failure.caught.error):
        return None
    message = f"under {words} the subject {went_wrong(trouble)} at S={length}, which it does not without"
    ways = (lambda: under.call(built, x)), (lambda: under.without(built, x))
    return failing_finding(built, "FWD212", message, trouble, ways, length=length, circumstance=words)


def _changed(subject: Subject, length: int, under: Circumstance) -> Departure | None:
    built = comparable_module(subject)
    base = baseline(built, built.input(length, batch=_ROWS))
    with unobserved():  # what it raises is reported here, with the circumstance
        return _departure(base, under)


def _departure(base: Baseline, under: Circumstance) -> Departure | None:
    """Beyond rounding: what is rounded to float32 under either default raises the floor to that by itself."""
    output, rounding = under.call(base.built, base.x), under.rounding
    found = base.departure(output)
    if found is None or rounding == 1:
        return found
    coarser = finest_precision(base.built, base.x).eps / torch.finfo(base.output.dtype).eps
    return base.departure(output, loudness=max(1.0, rounding / coarser))


def planted(subject: Subject) -> Subject:
    def rounds_in_inference_mode(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output.bfloat16().to(output.dtype) if torch.is_inference_mode_enabled() else output

    return replace(subject, forward=rounds_in_inference_mode)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "FWD207"), priority=425)
