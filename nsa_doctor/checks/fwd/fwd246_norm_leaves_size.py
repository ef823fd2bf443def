"""FWD246 norm-leaves-size

Detects: a module named after RMSNorm or LayerNorm whose output, with the weights that it starts with, grows with its
input, or has another mean square than those weights give, or whose weights begin on both sides of zero; L2Norm and
ScaleNorm, and a norm by some of the channels or by the lengths of vectors: the first of these.
Matters: a sum for a mean, a variance for its root, an epsilon in the wrong place: what follows is fed too much or too
little, the model trains all the same, and weights of another implementation give other outputs.
Fix: divide by the root of the mean square over the channels, to which epsilon is added.

Example:
    # faulty
    x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
    # correct
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.weight_origin import origin_of
from nsa_doctor.probes.numerics.divergence import answer_place
from nsa_doctor.probes.numerics.named_norms import NormFault, faulty_norms
from nsa_doctor.subject.contract import Subject

_LENGTH = 16


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject, is_randomised=False)
    reported: set[type[nn.Module]] = set()
    for fault in faulty_norms(sp, min(_LENGTH, subject.max_length)):
        kind = type(fault.module)
        if kind not in reported:
            reported.add(kind)
            yield Finding(
                message=f"{kind.__name__} does not normalise: {fault.text}",
                where=_place(sp, fault),
                repro=command_for(subject, "FWD246"),
            )


def _place(sp: BuiltModule, fault: NormFault) -> Place:
    """The line that draws the weights at fault, or that makes its output."""
    drawn = origin_of(sp.subject, fault.parameter) if fault.parameter else None
    if drawn is not None and drawn.place is not None:
        return drawn.place
    return answer_place(sp, fault.name, lambda: fault.module(fault.x, *fault.gates))


def planted(subject: Subject) -> Subject:
    class RMSNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

    class Normed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.norm = inner, RMSNorm()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.inner(x)
            return output + self.norm(output)

    return replace(subject, build=lambda seed: Normed(subject.build(seed)))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), priority=456)
