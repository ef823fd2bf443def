"""Tells the parent of every call into a subject, so that only a call that does not return counts as a hang."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.seams import SEAMS
from nsa_doctor.subject.contract import Subject

_NOT_CALLS = ("build", "fill_unwritten", "cache_bytes", "variants", "routes", "twins", "max_slowdown")


def watched(subject: Subject, tell: Callable[[int | None], None], avoid: Collection[int] = ()) -> Subject:
    """The same subject; `tell` hears the length of each call, and lengths in `avoid` are refused.

    A refused call raises NotComparableError: the length is known to hang or to end the process.
    """
    last: dict[str, Any] = {"length": -1, "at": 0.0}

    def beat(length: int | None) -> None:
        now = time.monotonic()
        if length != last["length"] or now - last["at"] > _QUIET_SECONDS:
            last.update(length=length, at=now)
            tell(length)

    def wrap(seam: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            length = next((arg.shape[1] for arg in args if isinstance(arg, Tensor) and arg.ndim > 1), None)
            if length in avoid:
                raise NotComparableError(f"S={length} is not tried again: it hangs or ends the process")
            beat(length)
            return seam(*args, **kwargs)

        call.__wrapped__ = seam  # type: ignore[attr-defined]
        return call

    offered: dict[str, Any] = {
        name: wrap(getattr(subject, name)) for name in SEAMS if name not in _NOT_CALLS and subject.offers(name)
    }
    return replace(subject, **offered)


def made_known(subject: Subject, know: Callable[[nn.Module], None]) -> Subject:
    """The same subject; `know` hears of every module that is built."""

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        know(module)
        return module

    build.__wrapped__ = subject.build  # type: ignore[attr-defined]
    return replace(subject, build=build)


_QUIET_SECONDS = 0.2
