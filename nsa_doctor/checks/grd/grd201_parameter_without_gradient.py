"""GRD201 parameter-without-gradient

Detects: a trainable parameter that the output depends on and that gets no gradient, even after an optimizer step.
Matters: it stays as it was initialised for the whole training run, and nothing says so.
Fix: look at the line named: detach, .data, no_grad, .item() or a copy by torch.tensor cuts the way back.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.check import Check
from nsa_doctor.checks.unlearned import (
    MOST_FINDINGS,
    MOST_TRIED,
    grouped,
    lengths_for,
    listed,
    placed,
    trainable,
    watched_pass,
)
from nsa_doctor.finding import Finding
from nsa_doctor.probes.cuts import Cut
from nsa_doctor.probes.mattering import Mattering
from nsa_doctor.probes.specimen import Specimen, comparable_specimen, specimen
from nsa_doctor.probes.training import LEARNING_RATE, forward_backward
from nsa_doctor.repro import again
from nsa_doctor.subject import Subject


def run(subject: Subject) -> Iterator[Finding]:
    own = specimen(subject, mode="train")
    for length in lengths_for(subject):
        forward_backward(own, own.input(length))
        if all(parameter.grad is not None for _, parameter in trainable(own.module)):
            continue
        sp = comparable_specimen(subject, mode="train")
        x = sp.input(length)
        missing = _missing(sp, x)
        owed = list(Mattering(sp, x).among(missing, MOST_TRIED))
        if not owed:
            continue
        rest = len(trainable(sp.module)) - len(missing)
        for cut, names in grouped(_cuts(sp, x, owed))[:MOST_FINDINGS]:
            by = f"; {cut.operation} cuts the way back" if cut.operation else ""
            yield Finding(
                message=f"{listed(names)} without a gradient at S={length}, even after an optimizer step, although "
                f"the output depends on {'it' if len(names) == 1 else 'them'}{by}",
                where=placed(cut.place, names, sp.module),
                evidence={"length": length, "parameters": ",".join(names), "operation": cut.operation},
                control=f"{rest} other parameter{'' if rest == 1 else 's'} with a gradient" if rest else "",
                repro=again(subject, "GRD201"),
            )
        return


def _missing(sp: Specimen, x: Tensor) -> list[tuple[str, nn.Parameter]]:
    """Trainable parameters without a gradient, before and after a step of those that have one."""
    forward_backward(sp, x)
    missing = [(name, p) for name, p in trainable(sp.module) if p.grad is None]
    if missing:
        with torch.no_grad():
            for parameter in sp.module.parameters():
                if parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()):
                    parameter.add_(parameter.grad.sign() * parameter.abs(), alpha=-LEARNING_RATE)
        forward_backward(sp, x)
    return [(name, p) for name, p in missing if p.grad is None]


def _cuts(sp: Specimen, x: Tensor, owed: list[tuple[str, nn.Parameter]]) -> dict[str, Cut]:
    """Where the way from each parameter to the output is cut; where it is used, when no cut is seen."""
    found = {}
    for name, parameter in owed:
        done, watch = watched_pass(sp, x, [parameter])
        cuts = watch.cuts_before([done.output]) or watch.cuts
        found[name] = cuts[0] if cuts else Cut("", watch.place_of(parameter))
    return found


def planted(subject: Subject) -> Subject:
    def detached(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x).detach()

    return replace(subject, forward=detached)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD206",))
