"""One call of a loss under a watch of the functions that it calls."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import preserved_state

Watch = TypeVar("Watch", bound=TorchFunctionMode)


def watched_loss(
    sp: BuiltModule, call: Callable[[], Any], make: Callable[[Places], Watch]
) -> tuple[Watch, Any] | Caught:
    """The watch that `make` gives for lines of the subject, and what the call answered under it; what it raised."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = make(places)

    def watched() -> Any:
        with preserved_state(), torch.enable_grad(), uncompiled(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of some of what is looked for
            with places.watching(), watch:
                return call()

    with unobserved():
        answer = attempt(watched)
    return answer if isinstance(answer, Caught) else (watch, answer)
