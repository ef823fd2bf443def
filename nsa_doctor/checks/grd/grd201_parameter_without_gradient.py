"""GRD201 parameter-without-gradient

Detects: a trainable parameter that is used and gets no gradient, even after an optimizer step: the way back from the
    output is cut, goes through a comparison, or what is computed from it is thrown away.
Matters: it stays as it was initialised for the whole training run, and nothing says so.
Fix: look at the line named: detach, .data, no_grad, .item() or a copy by torch.tensor cuts the way back.

Example:
    # faulty
    y = y * self.scale.item()  # a number: no gradient leads back to the parameter
    # correct
    y = y * self.scale
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.not_handed_on import moved_elsewhere
from nsa_doctor.checks._shared.unlearned import (
    MOST_FINDINGS,
    UNREACHED,
    comparable_pass,
    cut_off,
    lengths_for,
    listed,
    trainable,
)
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.codebooks import codebooks
from nsa_doctor.probes.gradients.rounds import is_within, note_of_rounds, rounds_without_gradient
from nsa_doctor.probes.model.built_module import built, comparable_module
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    own = built(subject, mode="train")
    for length in lengths_for(subject):
        comparable_pass(own, own.input(length))
        if all(parameter.grad is not None for _, parameter in trainable(own.module)):
            continue
        sp = comparable_module(subject, mode="train")
        found = cut_off(sp, sp.input(length))
        rounds = rounds_without_gradient(sp) if found else []
        if rounds and any(is_within(item.names[0], rounds) for item in found):
            yield note_of_rounds(sp, rounds)
            found = [item for item in found if not is_within(item.names[0], rounds)]
        chosen = codebooks(sp, sp.input(length)) if found else set()
        idle = [name for item in found for name in item.names if item.reason.startswith(UNREACHED) or name in chosen]
        elsewhere, notes = moved_elsewhere(subject, idle)
        yield from notes
        found = [item for item in found if not elsewhere.keys() >= set(item.names)]
        rest = sum(parameter.grad is not None for _, parameter in trainable(own.module))
        for item in found[:MOST_FINDINGS]:
            yield Finding(
                message=f"{listed(item.names)} without a gradient at S={length}, even after an optimizer step: "
                f"{item.reason}",
                where=item.place,
                evidence={"length": length, "parameters": ",".join(item.names)},
                control=f"{rest} other parameter{'' if rest == 1 else 's'} with a gradient" if rest else "",
                repro=command_for(subject, "GRD201"),
            )
        if found or rounds or notes:
            return


def planted(subject: Subject) -> Subject:
    def detached(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x).detach()

    return replace(subject, forward=detached)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", commands=("anomaly",))
