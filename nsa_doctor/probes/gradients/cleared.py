"""Where a step clears gradients of its own batch that no optimizer has stepped with."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places


def first_clearing(module: nn.Module, packages: tuple[str, ...], run: Callable[[], object]) -> Place | None:
    """The line of the first `zero_grad` that clears what a step's backward passes left, before its optimizer steps.

    The module has no gradients before it runs.
    """
    places = Places(FrameFilter(packages))
    places.know(module)
    found: list[Place] = []
    stepped: list[object] = []

    def clearing(clear: Callable[..., None]) -> Callable[..., None]:
        def cleared(holder: Any, *args: Any, **kwargs: Any) -> None:
            gradients = [each.grad for each in module.parameters() if each.grad is not None]
            if not stepped and any(bool(each.any()) for each in gradients):
                found.append(places.here()[0])
            clear(holder, *args, **kwargs)

        return cleared

    hook = register_optimizer_step_pre_hook(lambda *_: stepped.append(None))
    patches = [patch.object(kind, "zero_grad", clearing(kind.zero_grad)) for kind in (torch.optim.Optimizer, nn.Module)]
    try:
        with unobserved(), places.watching(), patches[0], patches[1]:
            attempt(run)
    finally:
        hook.remove()
    return found[0] if found else None
