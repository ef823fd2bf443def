"""GRD212 part-of-parameter-without-effect

Detects: one of several stacked weights (the first dimension of a parameter of three or more) that is computed with, but
gets no gradient and changes no output at any length and with no weights, where most of its neighbours do: an expert
whose output is written over. One that nothing is ever sent to is left alone.
Matters: its share of the parameters is paid for in memory and time, and the model is as much smaller.
Fix: look at what becomes of its result: for one that is set where it should be added, or read from the wrong place.

Example:
    # faulty
    for e in range(num_experts):
        out[token] = gate * (x[token] @ self.weight[e])  # of two experts of a token the last counts
    # correct
    for e in range(num_experts):
        out[token] += gate * (x[token] @ self.weight[e])
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.stacked import dead_in_stacks
from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    for names, place in dead_in_stacks(subject)[:MOST_FINDINGS]:
        listed = ", ".join(names)
        yield Finding(
            message=f"{listed}: computed with, but no output changes with it and it gets no gradient, at several "
            f"lengths and weights, as most beside it in the stack do",
            where=place,
            evidence={"parameters": listed},
            repro=command_for(subject, "GRD212"),
        )


def planted(subject: Subject) -> Subject:
    class Stacked(nn.Module):
        """The subject behind four gains, of which the first is written over."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.gains = nn.Parameter(torch.rand(4, 1, 1) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            for index in range(4):
                gained = output * self.gains[index]
                output = gained if index else output
            return output

    return replace(subject, build=lambda _seed: Stacked(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "GRD401"),
    explained_by=("GRD201", "GRD202", "GRD208", "GAT101", "GAT104"),
)
