"""GAT101 gate-all-zero

Detects: a gate whose last layer starts with weight and bias exactly zero: it gives the same weights whatever the input.
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

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import again
from nsa_doctor.probes.attention.gates import ObservedGate, gates, gates_of, take_steps
from nsa_doctor.subject.contract import Subject

_NUM_MIXED = 2  # one weight alone scales what it gates, and may well start at a constant; so may each feature's own


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp, x, found = gates_of(subject)
    if not found:
        raise NotApplicableError("it has no gate that could be found")
    named = dict(sp.module.named_parameters())
    zero = sorted((gate for gate in found if _is_zero(gate, named)), key=lambda gate: not _is_mixing(gate))
    if not zero:
        return
    first = zero[0]
    value = float(first.values[0, 0])
    take_steps(sp, x, 1)
    moved = any(gate.where == first.where and gate.spread > 0 for gate in gates(sp, x)[0])
    names = " and ".join(name for name in first.parameters if name not in first.scales)
    if moved and not _is_mixing(first) and not subject.offers("gate"):
        yield Note(message=f"{names} start at zero; a step moves them", where=first.where)
        return
    others = f", as are {len(zero) - 1} other gates" if len(zero) > 1 else ""
    yield Finding(
        message=f"{names} are exactly zero{others}: every weight is {value:.4g} whatever the "
        f"input; one optimizer step {'moves it' if moved else 'does not move it'}",
        where=first.where,
        evidence={"gates": len(zero), "value": value, "a step moves it": moved},
        repro=again(subject, "GAT101"),
    )


def _is_zero(gate: ObservedGate, named: dict[str, nn.Parameter]) -> bool:
    """Whether nothing but zeros makes its logits; what only scales them does not count."""
    own = [named[name] for name in gate.parameters if name in named and name not in gate.scales]
    return bool(own) and not gate.is_shifted and not any(bool(parameter.any()) for parameter in own)


def _is_mixing(gate: ObservedGate) -> bool:
    """Whether it weighs branches against each other: not a number alone, nor each feature by itself."""
    return gate.values.shape[-1] >= _NUM_MIXED and not gate.is_elementwise


def planted(subject: Subject) -> Subject:
    class Gated(nn.Module):
        """The subject's output, weighed against its input by a gate that is all zero."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.score = nn.Linear(subject.width, 2)
            nn.init.zeros_(self.score.weight)
            nn.init.zeros_(self.score.bias)

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.softmax(self.score(x), dim=-1)
            output: Tensor = weights[..., :1] * subject.forward(self.inner, x) + weights[..., 1:] * x
            return output

    return replace(subject, build=lambda _seed: Gated(), forward=lambda module, x: module(x), gate=None)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
