"""GRD219 rows-act-through-their-sum

Detects: a matrix of weights all of whose rows get the same gradient as other rows of it, for any input and any weights:
they do no more than their sum, as where queries of several heads are added up before a softmax. Where the rows of
another layer's do not, it is a note.
Matters: heads or channels that are paid for are one; the model is as much smaller, and nothing else shows it.
Fix: look at the line named for a sum or a mean over an axis that has to stay, as where an einsum's output lacks it.

Example:
    # faulty
    scores = torch.einsum("bghqd,bhkd->bhqk", q, k)  # adds the g queries of a group up
    # correct
    scores = torch.einsum("bghqd,bhkd->bghqk", q, k)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.roles import unlike_beside
from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS, trainable
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import counted
from nsa_doctor.probes.gradients.summed_rows import Summed, summed_rows
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _ANOTHER_SEED = 37, 31337


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject, mode="train")
    if not trainable(sp.module):
        raise NotApplicableError("it has no parameter that is trained")
    if sp.dtype != "float64":
        raise NotApplicableError("it does not run in float64, where gradients that are alike show")
    found = _summed(sp)
    if not found:
        return
    other = comparable_module(replace(subject, seed=subject.seed + _ANOTHER_SEED), mode="train")
    again = {each.name for each in _summed(other)}
    summed = [each for each in found if each.name in again]
    for each in summed[:MOST_FINDINGS]:
        sums = counted(each.num_groups, "sum")
        message = (
            f"the {each.num_rows} rows of {each.name} act through {sums} of them: those that are added up get "
            "one gradient, whatever the input and the weights"
        )
        if beside := unlike_beside(sp.module, each.name, {each.name for each in summed}):
            yield Note(message=f"{message}; those of {beside} do not", where=each.place)
            continue
        yield Finding(
            message=message,
            where=each.place,
            evidence={"parameter": each.name, "rows": each.num_rows, "sums": each.num_groups},
            repro=command_for(subject, "GRD219"),
        )


def _summed(sp: BuiltModule) -> list[Summed]:
    length, seed = min(_LENGTH, sp.subject.max_length), sp.subject.seed
    return summed_rows(sp, [sp.input(length, 2, seed=seed + number) for number in range(2)])


def planted(subject: Subject) -> Subject:
    class Added(nn.Module):
        """The subject, with four maps of its output added up."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.maps = nn.Parameter(torch.randn(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + (output[..., None, :2] * self.maps.to(output)).sum((-1, -2))[..., None]

    return replace(subject, build=lambda _seed: Added(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "GRD401"),
    explained_by=("GRD201", "GRD202"),
)
