"""GAT101 gate-all-zero

Detects: a gate whose last layer starts with weight and bias exactly zero and gives every token the same weights even
    after some optimizer steps; one that the steps move is a note, unless the subject offers it as its `gate`.
Matters: all branches are averaged alike, and layers before the gate get no gradient through it until it has moved.
Fix: start the weight small and random (a standard deviation of 0.02, say); a bias of zero is fine.

Example:
    # faulty
    nn.init.zeros_(self.gate.weight)
    nn.init.zeros_(self.gate.bias)
    # correct
    nn.init.normal_(self.gate.weight, std=0.02)
    nn.init.zeros_(self.gate.bias)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.gates import ObservedGate, gates, gates_of, starts_at_zero, take_steps
from nsa_doctor.subject.contract import Subject

_STEPS = 3


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp, x, found = gates_of(subject)
    if not found:
        raise NotApplicableError("it has no gate that could be found")
    zero = [gate for gate in found if starts_at_zero(gate, sp.module)]
    if not zero:
        return
    take_steps(sp, x, _STEPS)
    moved = {gate.where for gate in gates(sp, x)[0] if not gate.is_blind}
    ill = [gate for gate in zero if gate.where not in moved or (gate.is_mixing and subject.offers("gate"))]
    ill.sort(key=lambda gate: not gate.is_mixing)
    if ill:
        yield _finding(subject, ill, is_moved=ill[0].where in moved)
        return
    yield Note(message=f"{_names(zero[0])} start at zero; {_STEPS} optimizer steps move them", where=zero[0].where)


def _finding(subject: Subject, ill: Sequence[ObservedGate], *, is_moved: bool) -> Finding:
    value = float(ill[0].values[0, 0])
    others = f", as are {len(ill) - 1} other gates" if len(ill) > 1 else ""
    return Finding(
        message=f"{_names(ill[0])} are exactly zero{others}: every weight is {value:.4g} whatever the "
        f"input; {_STEPS} optimizer steps {'move it' if is_moved else 'do not make it depend on its input'}",
        where=ill[0].where,
        evidence={"gates": len(ill), "value": value, "a step moves it": is_moved},
        repro=command_for(subject, "GAT101"),
    )


def _names(gate: ObservedGate) -> str:
    return " and ".join(name for name in gate.parameters if name not in gate.scales)


def planted(subject: Subject) -> Subject:
    class Gated(nn.Module):
        """The subject's output, weighed against its input by a gate that stays all zero."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.hidden, self.score = nn.Linear(subject.width, 8), nn.Linear(8, 2)
            for layer in (self.hidden, self.score):  # each keeps the gradient of the other's weight at zero
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.softmax(self.score(torch.relu(self.hidden(x))), dim=-1)
            output: Tensor = weights[..., :1] * subject.forward(self.inner, x) + weights[..., 1:] * x
            return output

    return replace(subject, build=lambda _seed: Gated(), forward=lambda module, x: module(x), gate=None)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
