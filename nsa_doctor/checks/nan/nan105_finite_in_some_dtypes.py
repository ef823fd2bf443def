"""NAN105 finite-in-some-dtypes

Detects: an output that is finite in float32 and not in bfloat16 or float16, or a gradient that is not in bfloat16,
on the same ordinary input.
Matters: training is switched to low precision for speed, and that is when it breaks.
Fix: float16 ends at 65504 and at 6e-8: compute sums of squares, exponentials and small divisors in float32.

Example:
    # faulty
    y = x * x.square().sum(-1, keepdim=True).add(1e-8).rsqrt()  # 1e-8 is 0 in float16
    # correct
    wide = x.float()
    y = (wide * wide.square().sum(-1, keepdim=True).add(1e-8).rsqrt()).to(x.dtype)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.swept import lengths_of, swept
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.engine.measure_points import points
from nsa_doctor.subject.contract import Subject

_NUM_LENGTHS = 6
_DTYPES = ("float32", "bfloat16", "float16")


def run(subject: Subject) -> Iterator[Finding]:
    lengths = lengths_of(subject, _NUM_LENGTHS)
    yield from swept(subject, CHECK.answers, points(lengths, dtypes=_DTYPES, modes=("train",)))


def planted(subject: Subject) -> Subject:
    def epsilon_below_float16(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        nothing = output * 0
        return output + nothing / (nothing + 1e-8)

    return replace(subject, forward=epsilon_below_float16)


CHECK = Check(doc=__doc__, run=run, planted=planted, answers=("non-finite by dtype",))
