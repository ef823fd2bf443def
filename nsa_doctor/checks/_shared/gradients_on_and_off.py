"""What training mode does without gradients alone, or with them alone: noise, or another output."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from nsa_doctor.checks._shared.compared import branch_finding, confirmed
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.lines_apart import at_own_line
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Subject

_ROWS = 3
InTraining = Callable[[Subject], BuiltModule]  # as it is compared


def odd_draws(training: InTraining, subject: Subject, length: int) -> Finding | None:
    """The finding of FWD207 about a module in training mode that draws under no_grad, and with gradients does not."""
    sp = training(subject)
    x = sp.input(length)
    with_gradients, without = (_drawn_from(sp, x, is_on) for is_on in (True, False))
    if with_gradients or not without:
        return None
    ways = (partial(_drawn_from, sp, x, is_on) for is_on in (False, True))
    return Finding(
        message=f"training mode draws random numbers under no_grad at S={length}, from {' and '.join(without)} "
        "generator, and with gradients it draws none",
        where=at_own_line(sp.subject, sp.module, definition_place(sp.module), *ways),
        evidence={"length": length, "mode": "train"},
        repro=command_for(sp.subject, "FWD207"),
    )


def _drawn_from(sp: BuiltModule, x: Tensor, is_on: bool) -> tuple[str, ...]:
    """The generators that a call moves, with gradients on or off."""
    seed_everything(sp.subject.seed)  # as the call does
    generators = Generators()
    _output(sp, x, is_on)
    return generators.drawn_from()


def changed_by_recording(training: InTraining, subject: Subject, length: int) -> Finding | None:
    """The finding of FWD207 about one whose output in training is another with gradients, where neither draws.

    Each is the second call of a module of its own: the first, with gradients, may set up what depends on data.
    """
    found = confirmed(subject, lambda subject: _changed(training, subject, length))
    if found is None:
        return None
    recorded, plain = (_begun(training, subject, length) for _ in range(2))
    x = plain.input(length, _ROWS)
    ways = partial(_output, recorded, x, True), partial(_output, plain, x, False)
    message = f"training mode gives another output with gradients than under no_grad at S={length}"
    return branch_finding(recorded, "FWD207", message, ways, found, length=length, mode="train")


def _begun(training: InTraining, subject: Subject, length: int) -> BuiltModule:
    sp = training(subject)
    _output(sp, sp.input(length, _ROWS), True)
    return sp


def _changed(training: InTraining, subject: Subject, length: int) -> Departure | None:
    """How one departs from the other, where each is the same in two modules and no generator is moved."""
    base = baseline(comparable_module(subject), training(subject).input(length, _ROWS))
    outputs = []
    for is_on in (True, True, False, False):
        sp = _begun(training, subject, length)
        seed_everything(subject.seed)  # as the call does
        generators = Generators()
        outputs.append(_output(sp, base.x, is_on))
        if generators.drawn_from():
            return None
    if not (torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[2], outputs[3])):
        return None
    return base.departure(outputs[0], expected=outputs[2])


def _output(sp: BuiltModule, x: Tensor, is_on: bool) -> Tensor:
    seed_everything(sp.subject.seed)  # as each call does
    with torch.set_grad_enabled(is_on):
        return sp(x).detach()
