"""ACM101 output-far-larger-than-input

Detects: an output more than a hundred times as large as the input, at the first weights.
Matters: the residual stream that it is added to is drowned, and low precision overflows.
Fix: scale the output projection's first weights down, or normalise before it.

Example:
    # faulty
    self.out = nn.Linear(dim, dim)
    nn.init.normal_(self.out.weight, std=50.0)
    # correct
    self.out = nn.Linear(dim, dim)
    nn.init.normal_(self.out.weight, std=dim**-0.5)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from nsa_doctor import Check, Finding, Place, Subject
from nsa_doctor.core.reproduce import command_for

_LARGEST, _LENGTH = 100.0, 64


def run(subject: Subject) -> Iterator[Finding]:
    """Yield a finding, with its place, its numbers and the command that shows it again, or nothing."""
    if subject.input == "tokens":  # ids have no size
        return
    module = subject.build(subject.seed).eval()
    x = torch.randn(1, _LENGTH, subject.width, generator=torch.Generator().manual_seed(subject.seed))
    with torch.no_grad():
        ratio = float(subject.forward(module, x).abs().max() / x.abs().max())
    if not ratio <= _LARGEST:  # so that NaN is no pass
        yield Finding(
            message=f"output is {ratio:.3g} times as large as the input (limit {_LARGEST:g}) at S={_LENGTH}",
            where=Place(module_class=type(module).__name__),
            evidence={"length": _LENGTH, "ratio": ratio},
            repro=command_for(subject, "ACM101"),
        )


def planted(subject: Subject) -> Subject:
    """The subject with the fault in it, which proves that the check can fail."""
    return replace(subject, forward=lambda module, x: subject.forward(module, x) * 1e6)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")
