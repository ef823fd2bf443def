"""GAT103 gate-saturated

Detects: a gate so far open, shut or decided for most tokens of ordinary input that its slope is nearly zero. One that
    its bias alone holds open as it starts, the same for every token and short of what rounds to one, is a note.
Matters: it cannot learn: the gradient through it is lost in rounding, and the branch it shuts out gets none either.
Fix: scale the logits down, raise the temperature, or start the bias near zero.

Example:
    # faulty
    gate = torch.sigmoid(100 * self.gate(x))
    # correct
    gate = torch.sigmoid(self.gate(x))
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.gates import ObservedGate, gates_of
from nsa_doctor.subject.contract import Subject

_LEAST_SLOPE = 64 * torch.finfo(torch.float32).eps  # a gradient through it is no rounding yet
_MOST = 0.75  # no gate of 111 healthy modules of many kinds comes to 0.05 as it starts


def run(subject: Subject) -> Iterator[Finding | Note]:
    _, _, found = gates_of(subject)
    if not found:
        raise NotApplicableError("it has no gate that could be found")
    held_open: list[Note] = []
    for gate in found:
        is_alone = gate.is_softmax and gate.weights.shape[-1] == 1
        if is_alone or not gate.saturated_share >= _MOST:
            continue
        message = (
            f"{gate.saturated_share:.0%} of a gate's weights are flat: the steepest slope over "
            f"{gate.values.shape[0]} tokens is {float(gate.slopes.max()):.1e} where 0.25 is possible"
        )
        if _is_held_open(gate):
            held_open.append(Note(message=f"{message}; its bias alone holds it open for a start", where=gate.where))
            continue
        yield Finding(
            message=message,
            where=gate.where,
            evidence={"flat": gate.saturated_share, "steepest": float(gate.slopes.max())},
            repro=command_for(subject, "GAT103"),
        )
        return
    yield from held_open[:1]


def _is_held_open(gate: ObservedGate) -> bool:
    is_open = gate.is_blind and not gate.is_softmax and float(gate.values.min()) > 0.5
    return is_open and float(gate.slopes.min()) > _LEAST_SLOPE


def planted(subject: Subject) -> Subject:
    class Gated(nn.Module):
        """The subject's output, weighed against its input by a gate that is wide open."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.score = nn.Linear(subject.width, 2)
            nn.init.constant_(self.score.bias, 40.0)

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.sigmoid(self.score(x))
            output: Tensor = weights[..., :1] * subject.forward(self.inner, x) + weights[..., 1:] * x
            return output

    return replace(subject, build=lambda _seed: Gated(), forward=lambda module, x: module(x), gate=None)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
