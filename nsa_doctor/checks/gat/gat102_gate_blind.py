"""GAT102 gate-blind

Detects: a gate whose weights are the same for every token, and still are after some optimizer steps.
Matters: it is a constant that costs time: nothing the input holds can open or close a branch.
Fix: feed the gate the input, not a constant; look for a softmax over an axis of size one and for a huge temperature.

Example:
    # faulty
    gate = self.gate(x)[..., None].softmax(-1)  # over an axis of size one: always 1
    # correct
    gate = self.gate(x).softmax(-1)
"""

from collections.abc import Iterator
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
    blind = [gate for gate in found if _is_blind(gate, x)]
    if not blind:
        return
    known = [gate for gate in blind if starts_at_zero(gate, sp.module)]  # a note of GAT101, once they have moved
    take_steps(sp, x, _STEPS)
    after = [gate for gate in gates(sp, x)[0] if _is_blind(gate, x)]
    for gate in blind:
        if gate not in known and not any(other.where == gate.where for other in after):
            yield Note(
                message=f"a gate gives every token the same weights until an optimizer step has moved it ({gate.where})"
            )
    if after:
        gate = after[0]
        yield Finding(
            message=f"a gate gives every token the weights {_listed(gate)} and still does after {_STEPS} steps",
            where=gate.where,
            evidence={"gates": len(after), "spread": gate.spread, "tokens": gate.values.shape[0]},
            repro=command_for(subject, "GAT102"),
        )


def _is_blind(gate: ObservedGate, x: Tensor) -> bool:
    """No weight moves by more than rounding; a flat gate that is not of one weight alone is another illness.

    Nor is one of rows a gate of tokens: it may be made of what else a row is given, which is one for all here.
    """
    is_alone = gate.is_softmax and gate.weights.shape[-1] == 1
    is_of_rows = gate.weights.shape[1] == 1 < x.shape[1]
    return gate.is_blind and (is_alone or (gate.saturated_share < 1 and not is_of_rows))


def _listed(gate: ObservedGate) -> str:
    return ", ".join(f"{float(value):.3g}" for value in gate.values[0][:4])


def planted(subject: Subject) -> Subject:
    class Gated(nn.Module):
        """The subject's output, weighed against its input by a gate that is fed with zeros."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.score = nn.Linear(subject.width, 2)

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.softmax(self.score(torch.zeros_like(x)), dim=-1)
            output: Tensor = weights[..., :1] * subject.forward(self.inner, x) + weights[..., 1:] * x
            return output

    return replace(subject, build=lambda _seed: Gated(), forward=lambda module, x: module(x), gate=None)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("GAT101",))
