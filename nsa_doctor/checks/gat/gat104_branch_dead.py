"""GAT104 branch-dead

Detects: one of several branches whose gate weight is nearly zero for every token, or has no effect on the output.
Matters: the branch is computed and thrown away: its memory and time are spent, and what it should see is not seen.
Fix: look at the gate's bias and order, and at where the weighed branches are added up.

Example:
    # faulty
    y = gate[..., 0:1] * compressed + gate[..., 1:2] * selected  # and sliding is computed for nothing
    # correct
    branches = torch.stack((compressed, selected, sliding), dim=-1)
    y = (gate[..., None, :] * branches).sum(-1)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.gates import ObservedGate, gates, gates_of, gradients_of, take_steps
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject

_STEPS, _LONG = 2, 1024


def run(subject: Subject) -> Iterator[Finding]:
    sp, x, found = gates_of(subject)
    if not found:
        raise NotApplicableError("it has no gate that could be found")
    several = [gate for gate in found if not gate.is_router and gate.weights.shape[-1] > 1]
    for gate in several:
        shut = (gate.values.amax(0) < torch.finfo(torch.float32).eps ** 0.5).nonzero().flatten().tolist()
        if shut and len(shut) < gate.weights.shape[-1]:
            most = float(gate.values[:, shut].max())
            yield _finding(
                subject, gate, shut, f"is at most {most:.1e} for all {gate.values.shape[0]} tokens", gate.where
            )
            return
    if not several or subject.max_length < x.shape[1]:
        return
    take_steps(sp, x, _STEPS)
    idle = _idle(sp, x)
    if idle is None:
        return
    longer = sp.input(min(_LONG, subject.max_length))  # a branch may have nothing to give to few tokens
    idle = _idle(sp, longer) if longer.shape[1] > x.shape[1] else idle
    if idle is not None:
        yield _finding(subject, *idle, "has no effect on the output", idle[0].use)


def _idle(sp: BuiltModule, x: Tensor) -> tuple[ObservedGate, list[int]] | None:
    """A gate some of whose weights have a gradient of exactly zero everywhere, though the others have one."""
    found, output = gates(sp, x)
    for gate in found:
        gradient, _ = gradients_of(gate, output, sp.module, sp.subject.seed)
        if gradient is None or gate.is_router or gradient.shape[-1] < 2:
            continue
        none = ~(gradient != 0).flatten(0, -2).any(0)
        if bool(none.any()) and not bool(none.all()):
            return gate, none.nonzero().flatten().tolist()
    return None


def _finding(subject: Subject, gate: ObservedGate, parts: list[int], what: str, where: Place) -> Finding:
    return Finding(
        message=f"weight {', '.join(map(str, parts))} of {gate.weights.shape[-1]} of a gate {what}",
        where=where,
        evidence={"weights": len(parts), "of": gate.weights.shape[-1]},
        repro=command_for(subject, "GAT104"),
    )


def planted(subject: Subject) -> Subject:
    class Gated(nn.Module):
        """The subject's output, weighed against its input by a gate that is shut for one of its branches."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.score = nn.Linear(subject.width, 2)
            self.score.bias.data = torch.tensor([0.0, -40.0])

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.softmax(self.score(x), dim=-1)
            output: Tensor = weights[..., :1] * subject.forward(self.inner, x) + weights[..., 1:] * x
            return output

    return replace(subject, build=lambda _seed: Gated(), forward=lambda module, x: module(x), gate=None)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "GRD401", "GAT101", "GAT102", "GAT103"))
