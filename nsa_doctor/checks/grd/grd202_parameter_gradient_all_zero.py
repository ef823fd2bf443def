"""GRD202 parameter-gradient-all-zero

Detects: a parameter that the output depends on and whose gradient is nothing but zeros; parameters that start at zero
    together and so keep each other's gradient at zero, step after step.
Matters: the optimizer holds it, the gradient is there, and it never moves.
Fix: look at the line named for what multiplies the gradient by zero; start one of the factors of a product off zero.
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
from nsa_doctor.probes.mattering import Mattering
from nsa_doctor.probes.specimen import Specimen, comparable_specimen, specimen
from nsa_doctor.probes.stuck import STEPS, stuck_at_zero
from nsa_doctor.probes.training import forward_backward
from nsa_doctor.repro import again
from nsa_doctor.subject import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from list(_erased(subject) or _stuck(subject))[:MOST_FINDINGS]


def _erased(subject: Subject) -> list[Finding]:
    """Gradients that are zero although the parameters are in general position."""
    own = specimen(subject, mode="train")
    for length in lengths_for(subject):
        forward_backward(own, own.input(length))
        if not _zero(own):
            continue
        sp = comparable_specimen(subject, mode="train")
        x = sp.input(length)
        _, watch = watched_pass(sp, x, [])
        zero = _zero(sp)
        owed = list(Mattering(sp, x).among(zero, MOST_TRIED)) if zero else []
        if owed:
            places = {name: watch.birth_of_zeros(p) for name, p in owed}
            places |= {name: watch.place_of(p) for name, p in owed if not places[name].file}
            return [
                Finding(
                    message=f"the gradient of {listed(names)} is exactly zero at S={length}, although the output "
                    f"depends on {'it' if len(names) == 1 else 'them'}",
                    where=placed(place, names, sp.module),
                    evidence={"length": length, "parameters": ",".join(names)},
                    repro=again(subject, "GRD202"),
                )
                for place, names in grouped(places)
            ]
    return []


def _zero(sp: Specimen) -> list[tuple[str, nn.Parameter]]:
    """Trainable parameters whose gradient holds zeros alone."""
    return [(name, p) for name, p in trainable(sp.module) if p.grad is not None and not bool((p.grad != 0).any())]


def _stuck(subject: Subject) -> Iterator[Finding]:
    """Gradients that are zero because several parameters start at zero."""
    sp, names = stuck_at_zero(subject, lengths_for(subject)[0])
    if not names:
        return
    _, watch = watched_pass(sp, sp.input(lengths_for(subject)[0]), [])
    together = {name: name.rpartition(".")[0].rpartition(".")[0] for name in names}
    for _, group in grouped(together):
        used = watch.place_of(dict(sp.module.named_parameters())[group[-1]])
        yield Finding(
            message=f"{listed(group)} are zero and their gradients too, still after {STEPS} optimizer steps; moved off "
            "zero together they get one",
            where=placed(used, group, sp.module),
            evidence={"parameters": ",".join(group), "num_steps": STEPS},
            repro=again(subject, "GRD202"),
        )


def planted(subject: Subject) -> Subject:
    def multiplied_by_zero(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        return output.detach() + output * 0

    return replace(subject, forward=multiplied_by_zero)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD206",))
