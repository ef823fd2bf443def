"""A check of your own, run here on a module: what its findings are, and that its planted bug is found."""

from collections.abc import Callable
from typing import Any

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check as run_on_subject

_LENGTHS = (64, 16)


def run_check(check: Check, subject: Subject | Callable[[], Any], *, is_planted: bool = False) -> Result:
    """Run a check in this process, without a time limit: its `verdict`, `findings`, `notes` and `reason`.

    subject: a Subject, or what makes a new nn.Module, Adapter or Subject. With `is_planted` it is made faulty by the
    check's `planted` first, and the check has to FAIL. Raises SubjectUnusableError for a subject that is none.
    """
    if not isinstance(subject, Subject):
        subject = adapt(SubjectRequest(spec="", lengths=_LENGTHS), subject)
    return run_on_subject(check, check.planted(subject) if is_planted else subject)
