"""NAN103 finite-in-some-modes

Detects: an output that is finite in some of training mode, `eval()` and `no_grad`, and not in the others.
Matters: evaluation says all is well while training dies, or training does while generation breaks.
Fix: compare what the branches on `self.training` and on `torch.is_grad_enabled()` do at the length named.

Example:
    # faulty
    if self.training:
        y = y / (torch.rand_like(y) > p)  # infinite where a value is dropped
    # correct
    if self.training:
        y = y * (torch.rand_like(y) > p) / (1 - p)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.swept import lengths_of, swept
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.engine.measure_points import points
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    yield from swept(subject, CHECK.answers, points(lengths_of(subject)), forward_only=True)


def planted(subject: Subject) -> Subject:
    def drops_everything(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        kept = 0.0 if module.training else 1.0
        return output * kept / kept if kept else (output * kept) / (output * kept)

    return replace(subject, forward=drops_everything)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", answers=("non-finite by mode",))
