"""NAN109 log-of-rounded-to-zero

Detects: a logarithm of what a softmax, a sigmoid or a softplus gave, in a forward pass, a loss or a training step,
that is rounded to zero once the module's weights are larger, as they are after training.
Matters: a probability that float32 cannot hold (below e^-103, in half precision e^-17) is zero, its logarithm minus
infinity: the first confident wrong answer makes the loss infinite and every gradient NaN.
Fix: let one function do both, which loses nothing: `log_softmax`, `logsigmoid`, `logsigmoid(-x)` for `log(1 - p)`, or
clamp before the logarithm.

Example:
    # faulty
    loss = -torch.log(torch.sigmoid(chosen - rejected)).mean()
    # correct
    loss = -F.logsigmoid(chosen - rejected).mean()
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.every_call import first_seen_in_calls
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.applied_in_turn import InTurn, applied_in_turn
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.subject.contract import Subject

_LOGARITHMS = ("log", "log2", "log10")
_THROUGH = ("Sum", "Mean", "Mul")
_LARGER = (10.0, 1e3, 1e5)  # numbers that stay between bounds do not come to zero by any
_INSTEAD = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}


def run(subject: Subject) -> Iterator[Finding]:
    seen = first_seen_in_calls(subject, _rounded)
    if seen is None:
        return
    asked, (each, times) = seen
    instead = next(
        (f"; {name} would not be" for kind, name in _INSTEAD.items() if each.given == f"the result of a {kind}"), ""
    )
    yield Finding(
        message=f"{each.function} in {asked.name} is taken of {each.given}, which is rounded to 0 once the weights are "
        f"larger: minus infinity{instead}",
        where=in_subject(each.place, asked.sp.module),
        evidence={"call": asked.name, "operation": each.function, "times": times},
        repro=command_for(subject, "NAN109"),
    )


def _rounded(sp: BuiltModule, call: Callable[[], Any]) -> Sequence[tuple[InTurn, float]] | Caught:
    """The logarithms of what is above zero as the module is, and rounded to it where all weights are larger."""
    seen = applied_in_turn(sp, call, _LOGARITHMS, _THROUGH)
    if isinstance(seen, Caught) or not seen:
        return seen if isinstance(seen, Caught) else []
    above = {each.place.short_line for each in seen if each.least > 0}
    above -= {each.place.short_line for each in seen if not each.least > 0}  # what a mask hides is zero on purpose
    state = ModuleState(sp.module, with_parameters=True)
    for times in _LARGER if above else ():
        with torch.no_grad():
            for parameter in sp.module.parameters():
                if parameter.requires_grad and parameter.is_floating_point():
                    parameter.mul_(times)
        again = applied_in_turn(sp, call, _LOGARITHMS, _THROUGH)
        state.restore()
        for each in [] if isinstance(again, Caught) else again:
            if each.place.short_line in above and each.least == 0 and each.is_from_finite:
                return [(each, times)]
    return []


def planted(subject: Subject) -> Subject:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = subject.forward(module, x).flatten(2).mean(1).float() * 100
        loss = -torch.log(scores.softmax(-1))[:, 0].mean()
        loss.backward()
        optimizer.step()
        return loss

    return replace(subject, train_step=step)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
