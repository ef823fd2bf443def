"""GAT105 gate-gets-no-gradient

Detects: a gate whose trainable parameters get no gradient, or exact zeros, though what it weighs reaches the output.
Matters: it stays as it was born while everything round it learns.
Fix: look for detach, no_grad, argmax or rounding between the gate's layer and the product with the branches.

Example:
    # faulty
    gate = (self.gate(x) > 0).to(x.dtype)  # a comparison has no gradient
    # correct
    gate = torch.sigmoid(self.gate(x))
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.gates import gates, gates_of, gradients_of, is_handed_on, take_steps
from nsa_doctor.probes.gradients.rounds import is_within, rounds_without_gradient
from nsa_doctor.subject.contract import Subject

_STEPS = 2


def run(subject: Subject) -> Iterator[Finding]:
    sp, x, found = gates_of(subject)
    if not found:
        raise NotApplicableError("it has no gate that could be found")
    take_steps(sp, x, _STEPS)
    after, output = gates(sp, x)
    rounds: list[str] | None = None
    for gate in after:
        _, gradients = gradients_of(gate, output, sp.module, subject.seed)
        if not gradients or any(gradient is not None and bool((gradient != 0).any()) for gradient in gradients):
            continue
        if not is_handed_on(gate, output):
            continue
        rounds = rounds_without_gradient(sp) if rounds is None else rounds
        if all(is_within(name, rounds) for name in gate.parameters):
            continue
        kind = "no gradient" if all(gradient is None for gradient in gradients) else "a gradient of exact zeros"
        yield Finding(
            message=f"{' and '.join(gate.parameters)} get {kind} after {_STEPS} optimizer steps, though what "
            "they weigh reaches the output",
            where=gate.where,
            evidence={"parameters": len(gradients), "steps": _STEPS},
            repro=command_for(subject, "GAT105"),
        )
        return


def planted(subject: Subject) -> Subject:
    class Gated(nn.Module):
        """The subject's output, weighed against its input by a gate that is cut off from its gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.score = nn.Linear(subject.width, 2)

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.softmax(self.score(x), dim=-1).detach()
            output: Tensor = weights[..., :1] * subject.forward(self.inner, x) + weights[..., 1:] * x
            return output

    return replace(subject, build=lambda _seed: Gated(), forward=lambda module, x: module(x), gate=None)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "GRD401", "GAT102", "GAT103"))
