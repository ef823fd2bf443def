"""Which variables of the environment a subject's own code reads, and on which line."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Place

_ASKING = ("__getitem__", "__contains__")  # get(), pop() and os.getenv() ask through the first


@contextmanager
def environment_reads(place_of: Callable[[FrameType], Place | None]) -> Iterator[dict[str, Place]]:
    """Names of variables that are read in this region, each with the line of the subject's own that read it first.

    `place_of` says of a frame where in the subject's own code it stands; what stands nowhere in it is not recorded.
    """
    found: dict[str, Place] = {}
    kind: Any = type(os.environ)

    def asking(method: str) -> Callable[[Any, Any], Any]:
        original = getattr(kind, method)

        def ask(environment: Any, name: Any) -> Any:
            if environment is os.environ and isinstance(name, str) and name not in found:
                place = attempt(lambda: place_of(frame_above(2)))
                if isinstance(place, Place):
                    found[name] = place
            return original(environment, name)

        return ask

    with ExitStack() as patches:
        for method in _ASKING:
            patches.enter_context(patch.object(kind, method, asking(method)))
        yield found
