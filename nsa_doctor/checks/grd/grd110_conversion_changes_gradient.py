"""GRD110 conversion-changes-gradient

Detects: a gradient, or the output it belongs to, of a module that is converted to bfloat16 or float16 and is further
from float64 on the same values than its roundings explain, measured by the same operations rounded in float64. What
leaves the range of float16 is a note. Or a norm that the module takes in float32 by itself and does not take back, so
that its next layer raises; of any other value that is a note.
Matters: a path that only half precision reaches (a kernel, a branch by dtype, a cast that cuts the graph, a clamp) is
what a GPU trains with, while tests in float32 are green.
Fix: hold that path to the plain one by its output and its gradients; look at the module named for a branch by dtype.

Example:
    # faulty
    if x.dtype == torch.bfloat16:
        state = state.detach()  # to save memory there
    # correct
    state = checkpoint(advance, state, use_reentrant=False)  # saves as much, and keeps the gradient
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import ANOTHER_SEED
from nsa_doctor.checks._shared.converted import conversion_fault, conversion_place, converted, length_of
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.numerics.promoted import promoted_at
from nsa_doctor.probes.numerics.rounding_budget import Twins
from nsa_doctor.probes.numerics.rounding_fault import RoundingFault
from nsa_doctor.subject.contract import Subject

_HALVES = ("bfloat16", "float16")


def run(subject: Subject) -> Iterator[Finding | Note]:
    found_of = {half: converted(subject, half) for half in _HALVES}
    pairs = {half: each for half, each in found_of.items() if isinstance(each, Twins)}
    if not pairs:
        promoted = promoted_at(subject, _HALVES[0], length_of(subject)) if subject.dtype == "float32" else None
        if promoted is not None:
            message = (
                f"converted to {_HALVES[0]}, a value that was raised to float32 meets half precision here and is not "
                f"taken back, and what follows raises {promoted.raised}"
            )
            if not promoted.is_of_norm:  # it may be made for autocast alone
                yield Note(message=message, where=promoted.place)
                return
            yield Finding(
                message=message,
                where=promoted.place,
                evidence={"length": length_of(subject), "dtype": _HALVES[0], "kind": "raised"},
                repro=command_for(subject, "GRD110"),
            )
            return
        raise NotApplicableError("it does not run in half precision and in float64, to compare them")
    yield from (each for each in found_of.values() if isinstance(each, Note))
    for half, pair in pairs.items():
        found = conversion_fault(pair)
        if isinstance(found, Note):
            yield found
        elif found is not None and _is_confirmed(subject, half):
            length = length_of(subject)
            yield Finding(
                message=f"converted to {half}, {found.words(half)}, at S={length}",
                where=conversion_place(pair, found.path),
                evidence={"length": length, "dtype": half, "error": found.error, "floor": found.budget},
                repro=command_for(subject, "GRD110"),
            )
            return


def _is_confirmed(subject: Subject, half: str) -> bool:
    """Whether another seed's weights and input show it too."""
    other = converted(replace(subject, seed=subject.seed + ANOTHER_SEED), half)
    return isinstance(other, Twins) and isinstance(conversion_fault(other), RoundingFault)


class _CutInHalfPrecision(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output.detach() + 0.5 * (output - output.detach()) if output.dtype == torch.bfloat16 else output


def planted(subject: Subject) -> Subject:
    return replace(subject, build=lambda seed: _CutInHalfPrecision(subject.build(seed)))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "NAN101"),
    explained_by=("GRD101", "FWD304", "NAN103", "NAN104", "NAN105"),
    unless=("stochastic",),
)
