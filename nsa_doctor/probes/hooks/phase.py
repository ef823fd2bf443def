"""One phase of a pass (build, forward, backward): its frame on the stack tells an observer that the subject runs."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, NotComparableError, SubjectFailedError, attempt

_Answer = TypeVar("_Answer")


def ask(phase: str, call: Callable[[], _Answer], module: nn.Module | None, output: Tensor | None = None) -> _Answer:
    answer = attempt(lambda: _waited_for(call()))
    if isinstance(answer, Caught):
        if isinstance(answer.error, NotComparableError):  # ours, of a call that was not made
            raise answer.error
        raise SubjectFailedError(phase, answer, module, output)
    return answer


def _waited_for(answer: _Answer) -> _Answer:
    """The answer, once a GPU is done with it: a kernel that fails is told to whoever waits next."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return answer
