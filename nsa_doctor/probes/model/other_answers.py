"""Has questions of the subject's code about how and where it runs be answered otherwise, while nothing else changes."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.internal import frame_above

_MANY = 64


@dataclass(frozen=True)
class OtherAnswers:
    """What a call is made to believe, in words; `answers` are by the function asked and who holds it."""

    words: str
    answers: Mapping[tuple[Any, str], Callable[..., Any]]

    @contextmanager
    def given(self, packages: Sequence[str]) -> Iterator[None]:
        """Answer so in this region, to the subject's own code alone."""
        frames = FrameFilter(tuple(packages))
        own = list(_own_modules(frames))
        with ExitStack() as stack:
            for (holder, name), answer in self.answers.items():
                asked = getattr(holder, name, None)
                if asked is not None:
                    replaced = _replaced(asked, answer, frames)
                    for owner, called in _names_of(asked, holder, name, own):
                        stack.enter_context(patch.object(owner, called, replaced))
            yield


def other_answers() -> Iterator[OtherAnswers]:
    """Being compiled, traced or scripted; many threads; a process group of one process."""
    yield OtherAnswers(
        "a call that torch says is being compiled",
        {(torch.compiler, name): _always(True) for name in ("is_compiling", "is_dynamo_compiling")},
    )
    yield OtherAnswers(
        "a call that torch says is being traced",
        {(torch.jit, name): _always(True) for name in ("is_tracing", "is_scripting")},
    )
    yield OtherAnswers(
        f"a machine of {_MANY} cores",
        {(torch, "get_num_threads"): _always(_MANY), (os, "cpu_count"): _always(_MANY)},
    )
    if distributed.is_available() and not distributed.is_initialized():
        yield OtherAnswers("a process group of one process", {(distributed, n): f for n, f in _GROUP_OF_ONE.items()})


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: answer


def _replaced(asked: Callable[..., Any], answer: Callable[..., Any], frames: FrameFilter) -> Callable[..., Any]:
    def answered(*args: Any, **kwargs: Any) -> Any:
        is_subjects = frames.rank_of(frame_above(1).f_code) == 3
        return (answer if is_subjects else asked)(*args, **kwargs)

    return answered


def _own_modules(frames: FrameFilter) -> Iterator[ModuleType]:
    """The modules of the subject's own code that are imported."""
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__") if inspect.ismodule(module) else None
        if isinstance(file, str) and frames.rank(file) == 3:
            yield module


def _names_of(asked: Any, holder: Any, name: str, own: Sequence[ModuleType]) -> Iterator[tuple[Any, str]]:
    """Where it is called from: its own module, and modules of the subject that have imported it by name."""
    yield holder, name
    for module in own:
        yield from ((module, each) for each, value in list(vars(module).items()) if value is asked)


def _unchanged(tensor: Tensor, *_args: Any, **_kwargs: Any) -> None:
    """What a collective does to the tensor of the only process."""


def _copied(into: Tensor, tensor: Tensor, *_args: Any, **_kwargs: Any) -> None:
    into.copy_(tensor.view_as(into))


def _gathered(into: list[Tensor], tensor: Tensor, *_args: Any, **_kwargs: Any) -> None:
    into[0].copy_(tensor)


_GROUP_OF_ONE: Mapping[str, Callable[..., Any]] = {
    "is_initialized": _always(True),
    "get_world_size": _always(1),
    "get_rank": _always(0),
    "barrier": _always(None),
    **dict.fromkeys(("all_reduce", "broadcast", "reduce"), _unchanged),
    **dict.fromkeys(("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"), _copied),
    "all_gather": _gathered,
}
