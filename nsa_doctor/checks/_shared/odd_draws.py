"""Random numbers that training mode draws without gradients alone: noise that no training step ever sees."""

from functools import partial

import torch
from torch import Tensor

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.lines_apart import at_own_line
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import seed_everything


def odd_draws(sp: BuiltModule, length: int) -> Finding | None:
    """The finding of FWD207 about a module in training mode that draws under no_grad, and with gradients does not."""
    x = sp.input(length)
    with_gradients, without = (_drawn(sp, x, is_on) for is_on in (True, False))
    if with_gradients or not without:
        return None
    ways = (partial(_drawn, sp, x, is_on) for is_on in (False, True))
    return Finding(
        message=f"training mode draws random numbers under no_grad at S={length}, from {' and '.join(without)} "
        "generator, and with gradients it draws none",
        where=at_own_line(sp.subject, sp.module, definition_place(sp.module), *ways),
        evidence={"length": length, "mode": "train"},
        repro=command_for(sp.subject, "FWD207"),
    )


def _drawn(sp: BuiltModule, x: Tensor, is_on: bool) -> tuple[str, ...]:
    """The generators that a call moves, with gradients on or off."""
    seed_everything(sp.subject.seed)  # as each call does
    generators = Generators()
    with torch.set_grad_enabled(is_on):
        sp(x)
    return generators.drawn_from()
