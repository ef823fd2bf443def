"""Whether a subject refuses a call on purpose, by a statement of its own, or a call of it fails."""

import dis
from collections.abc import Sequence

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.frames import FrameFilter

_LIBRARY = 2  # the rank of a library's frame: a wrapper refuses for what it wraps


def is_on_purpose(failure: SubjectFailedError, packages: Sequence[str]) -> bool:
    """Whether a statement of the subject's or of a library's raised it, and no operation of torch's that failed."""
    traceback = failure.caught.error.__traceback__
    if traceback is None or not isinstance(failure.caught.error, (AssertionError, ValueError, NotImplementedError)):
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    if FrameFilter(tuple(packages)).rank(code.co_filename) < _LIBRARY:
        return False
    return any(
        each.offset == traceback.tb_lasti and each.opname == "RAISE_VARARGS" for each in dis.get_instructions(code)
    )
