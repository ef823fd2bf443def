"""One phase of a pass (build, forward, backward), which another thread can see while it is on.

A listener hears how each call of the subject ended, whoever made it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.torch_errors import TorchError, error_kind

_Answer = TypeVar("_Answer")


class Listener(Protocol):
    """Hears how phases ended."""

    def raised(self, failure: SubjectFailedError) -> None:
        """A phase ended in an exception."""
        ...

    def returned(self, phase: str, module: nn.Module | None) -> None:
        """A phase came to its end."""
        ...


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)
_WATCHES_SAVES: ContextVar[bool] = ContextVar("watches_saves", default=False)


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Have a listener hear of every call in this region; None for nobody."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def unobserved() -> AbstractContextManager[None]:
    """A region whose calls are provoked: exceptions and values that are not finite say nothing against the subject."""
    return heard_by(None)


@contextmanager
def watched_saves() -> Iterator[None]:
    """A region in which the doctor watches what is saved for backward, which transforms of torch.func refuse."""
    token = _WATCHES_SAVES.set(True)
    try:
        yield
    finally:
        _WATCHES_SAVES.reset(token)


def is_of_the_watch(caught: Caught) -> bool:
    """Whether a call raised because the doctor watches what is saved for backward."""
    return _WATCHES_SAVES.get() and error_kind(caught.sentence) is TorchError.SAVES_WATCHED


def listener() -> Listener | None:
    """Who hears of calls made here and now."""
    return _LISTENER.get()


class Phases:
    """`under_way` has the phase of every thread in which one is on, by the thread's number."""

    under_way: ClassVar[dict[int, str]] = {}


def ask(phase: str, call: Callable[[], _Answer], module: nn.Module | None, output: Tensor | None = None) -> _Answer:
    with under_way(phase):
        answer = attempt(lambda: _waited_for(call()))
    hears = listener()
    if isinstance(answer, Caught):
        if isinstance(answer.error, NotComparableError):  # ours, of a call that was not made
            raise answer.error
        if is_of_the_watch(answer):
            raise NotComparableError(
                "torch.func, which it calls, does not let anybody watch what is saved for backward"
            )
        failure = SubjectFailedError(phase, answer, module, output)
        if hears is not None:
            hears.raised(failure)
        raise failure
    if hears is not None:
        hears.returned(phase, module)
    return answer


def in_mode(module: nn.Module, mode: Mode) -> nn.Module:
    """The module, switched as its user does: methods of its own may raise, and need not return it."""
    if mode == "train":
        ask("train", module.train, module)
    else:
        ask("eval", module.eval, module)
    return module


@contextmanager
def under_way(phase: str) -> Iterator[None]:
    """A region in which this thread waits for the subject, and in which phase."""
    thread = threading.get_ident()
    outer = Phases.under_way.get(thread, "")
    Phases.under_way[thread] = phase
    try:
        yield
    finally:
        Phases.under_way[thread] = outer


def _waited_for(answer: _Answer) -> _Answer:
    """The answer, once a GPU is done with it: a kernel that fails raises in whoever waits next."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return answer
