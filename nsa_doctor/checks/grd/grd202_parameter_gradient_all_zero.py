"""GRD202 parameter-gradient-all-zero

Detects: a parameter that the output depends on and whose gradient is nothing but zeros, or but rounding, step after
    step; parameters that start at zero together and so keep each other's gradient at zero.
Matters: the optimizer holds it, the gradient is there, and it never moves.
Fix: look at the line named for what multiplies the gradient by zero: a clamp, a gate that starts shut, a zero factor.

Example:
    # faulty
    self.down = nn.Parameter(torch.zeros(dim, rank))
    self.up = nn.Parameter(torch.zeros(rank, dim))  # each keeps the other's gradient at zero
    # correct
    self.down = nn.Parameter(torch.randn(dim, rank) * dim**-0.5)
    self.up = nn.Parameter(torch.zeros(rank, dim))
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import (
    MOST_FINDINGS,
    Unlearned,
    comparable_pass,
    erased,
    flat,
    lengths_for,
    listed,
    trainable,
)
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.stuck import is_zero
from nsa_doctor.probes.model.built_module import built, comparable_module
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    length = lengths_for(subject)[0]
    as_it_starts = built(subject, mode="train", is_randomised=False)
    for item in (_erased(subject) or flat(as_it_starts, length))[:MOST_FINDINGS]:
        yield Finding(
            message=f"the gradient of {listed(item.names)} is {item.gradient} at S={length}: {item.reason}",
            where=item.place,
            evidence={"parameters": ",".join(item.names), "num_parameters": len(item.names)},
            repro=command_for(subject, "GRD202"),
        )


def _erased(subject: Subject) -> list[Unlearned]:
    """With parameters in general position."""
    own = built(subject, mode="train")
    length = lengths_for(subject)[0]
    comparable_pass(own, own.input(length))
    if all(p.grad is None or not is_zero(p.grad) for _, p in trainable(own.module)):
        return []
    sp = comparable_module(subject, mode="train")
    return erased(sp, sp.input(length))


def planted(subject: Subject) -> Subject:
    def multiplied_by_zero(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        return output.detach() + output * 0

    return replace(subject, forward=multiplied_by_zero)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", commands=("anomaly",))
