"""Whether it was the doctor's own code that raised, and not the subject's."""

from traceback import walk_tb

from nsa_doctor.core.package import is_doctors, own_file
from nsa_doctor.subject.contract import WrongOutputError

# What watches an operation passes its exception on.
_WATCHING = ("__torch_dispatch__", "__torch_function__", "called", "dispatched")


def is_own_error(error: BaseException) -> bool:
    """Whether the doctor's code raised, that of planted bugs apart, though it was called from the subject's."""
    if isinstance(error, WrongOutputError):
        return False
    file = ""
    for frame, _ in walk_tb(error.__traceback__):
        file = "" if frame.f_code.co_name in _WATCHING else frame.f_code.co_filename
    return is_doctors(file) and not file.startswith(f"{own_file('checks')}/")
