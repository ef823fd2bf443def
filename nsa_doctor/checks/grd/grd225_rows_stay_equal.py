"""GRD225 rows-stay-equal

Detects: a parameter that begins with all of its rows equal, and whose rows get one gradient with every input that was
tried, and after a step too: latents or queries that begin as copies of one and that nothing ever tells apart. Gains are
none, which may multiply one another, nor are tables that are asked for ids.
Matters: as many as are paid for do the work of one; the loss falls, and no step makes them differ.
Fix: draw them at random, as by `nn.init.normal_(latents, std=0.02)`, or give each a place of its own.

Example:
    # faulty
    self.latents = nn.Parameter(torch.zeros(16, dim))
    # correct
    self.latents = nn.Parameter(0.02 * torch.randn(16, dim))
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.equal_rows import equal_rows, have_one_gradient, rows_of
from nsa_doctor.checks._shared.roles import unlike_beside
from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS, comparable_pass
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.training import LEARNING_RATE
from nsa_doctor.probes.model.weight_origin import origin_of
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS, _SEEDS = 37, 2, 2


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject, mode="train", is_randomised=False)
    if sp.dtype != "float64":
        raise NotApplicableError("it does not run in float64, where gradients that are alike show")
    left = equal_rows(sp, min(_LENGTH, subject.max_length))
    for seed in range(_SEEDS) if left else ():
        comparable_pass(sp, sp.input(min(_LENGTH, subject.max_length), _ROWS, seed=subject.seed + seed))
        left = {name: rows for name, rows in left.items() if have_one_gradient(rows)}
        with torch.no_grad():
            for parameter in sp.module.parameters():
                if parameter.grad is not None:
                    parameter -= LEARNING_RATE * parameter.grad
    alone = [name for name in left if not unlike_beside(sp.module, name, left)]
    for name, rows in [(name, left[name]) for name in alone[:MOST_FINDINGS]]:
        origin = origin_of(subject, name)
        place = definition_place(sp.module) if origin.place is None else origin.place
        yield Finding(
            message=(
                f"the {len(rows_of(rows))} rows of {name} begin equal and get one gradient, with every input and "
                f"after a step: they stay copies of one"
            ),
            where=place,
            evidence={"parameter": name, "rows": len(rows_of(rows))},
            repro=command_for(subject, "GRD225"),
        )


def planted(subject: Subject) -> Subject:
    class Latents(nn.Module):
        """The subject, with what four latents read of its output added."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.latents = nn.Parameter(torch.zeros(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            read = ((output[..., :2] @ self.latents.to(output).T).mT.softmax(-1) @ output[..., :1]).mean(1, True)
            return output + read

    return replace(subject, build=lambda _seed: Latents(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "GRD401"),
    explained_by=("GRD201", "GRD202", "GRD219"),
)
