"""FWD212 circumstance-changes-output

Detects: an output in eval() that changes with what must not matter: inference_mode(), anomaly or deterministic mode, a
frozen model, gradients held from before, an input that requires a gradient, the thread, torch's number of threads.
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
from pathlib import Path
from traceback import walk_tb

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, odd_lengths, one, told
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import again
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import comparable_specimen
from nsa_doctor.probes.model.circumstances import Call, circumstances, plainly
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.compare import Baseline, Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_ROWS = 2


def run(subject: Subject) -> Iterator[Finding]:
    length = odd_lengths(subject)[0]
    built = comparable_specimen(subject)
    base = baseline(built, built.input(length, batch=_ROWS))
    suspects = (number for number in range(len(_all_words(subject))) if _may_differ(base, _call(subject, number)))
    yield from one(_examine(subject, length, number, _all_words(subject)[number]) for number in suspects)


def _all_words(subject: Subject) -> list[str]:
    return [words for words, _ in circumstances(subject)]


def _may_differ(base: Baseline, call: Call) -> bool:
    """Whether it is worth a look on a module of its own: on this one, earlier circumstances may have left something."""
    with unobserved():
        try:
            return base.departure(call(base.built, base.x)) is not None
        except SubjectFailedError:
            return True


def _examine(subject: Subject, length: int, number: int, words: str) -> Finding | None:
    try:
        found = confirmed(subject, lambda subject: _changed(subject, length, number))
    except SubjectFailedError as error:
        trouble = trouble_of(error, subject.packages)
        if trouble.kind != "raised" or _is_of_autograd(error.caught.error):
            return None
        message = f"{words} makes the subject raise {trouble.message} at S={length}, which it does not without"
        return Finding(
            message=message,
            where=trouble.place,
            evidence={"length": length, "circumstance": words},
            repro=again(subject, "FWD212"),
        )
    if found is None:
        return None
    built = comparable_specimen(subject)
    x, call = built.input(length, batch=_ROWS), _call(subject, number)

    divergence = first_divergence(built, lambda: plainly(built, x, words), lambda: call(built, x), {})
    message = f"{words} gives another output than eval() under no_grad without it at S={length}"
    return told(subject, "FWD212", message, divergence, found, length=length, circumstance=words)


def _changed(subject: Subject, length: int, number: int) -> Departure | None:
    built = comparable_specimen(subject)
    base = baseline(built, built.input(length, batch=_ROWS))
    with unobserved():  # what it raises is told here, with the circumstance
        output = _call(subject, number)(built, base.x)
    return base.departure(output)


def _call(subject: Subject, number: int) -> Call:
    return list(circumstances(subject))[number][1]


def _is_of_autograd(error: BaseException) -> bool:
    """Whether autograd refuses, as it does what a module asks of it in inference mode or with nothing to train."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return (
        Path(files[-1]).is_relative_to(Path(torch.autograd.__file__).parent) or "inference tensor" in str(error).lower()
    )


def planted(subject: Subject) -> Subject:
    def rounds_in_inference_mode(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output.bfloat16().to(output.dtype) if torch.is_inference_mode_enabled() else output

    return replace(subject, forward=rounds_in_inference_mode)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "FWD207"), priority=425)
