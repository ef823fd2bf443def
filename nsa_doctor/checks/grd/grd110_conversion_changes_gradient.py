"""GRD110 conversion-changes-gradient

Detects: a gradient, or the output it belongs to, of a module that is converted to bfloat16 or float16 and is further
from float64 on the same values than its roundings explain, measured by the same operations rounded in float64. What
leaves the range of float16 is a note.
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
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.lines_apart import at_line_apart
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.numerics.imitated_half import half_passes
from nsa_doctor.probes.numerics.rounded_pass import passed
from nsa_doctor.probes.numerics.rounding_budget import Twins, twins
from nsa_doctor.probes.numerics.rounding_fault import RoundingFault, rounding_fault
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 67, 2
_HALVES = ("bfloat16", "float16")
_ANOTHER_SEED = 31337


def run(subject: Subject) -> Iterator[Finding | Note]:
    pairs = {half: pair for half in _HALVES if (pair := _pair(subject, half)) is not None}
    if not pairs:
        raise NotApplicableError("it does not run in half precision and in float64, to compare them")
    for half, pair in pairs.items():
        found = _fault(pair)
        if isinstance(found, Note):
            yield found
            continue
        if found is None:
            continue
        other = _pair(replace(subject, seed=subject.seed + _ANOTHER_SEED), half)
        if other is None or not isinstance(_fault(other), RoundingFault):
            continue
        yield Finding(
            message=f"converted to {half}, {found.words(half)}, at S={_length(subject)}",
            where=_place(pair, found.path),
            evidence={"length": _length(subject), "dtype": half, "error": found.error, "floor": found.budget},
            repro=command_for(subject, "GRD110"),
        )
        return


def _pair(subject: Subject, half: str) -> Twins | None:
    """The subject in that type and in float64 with the same values; None where it does not run so."""
    try:
        with unobserved():
            pair = twins(subject, half)
            pair.low(pair.low.input(_length(subject)))
    except SubjectFailedError:
        return None
    return pair


def _fault(pair: Twins) -> RoundingFault | Note | None:
    x = pair.wide.input(_length(pair.wide.subject), _ROWS)
    x = x.to(pair.dtype).double() if x.is_floating_point() else x
    with unobserved():
        plain, imitated, found = half_passes(pair, x)
    half = str(pair.dtype)[6:]
    if all(bool(isfinite(each).all()) for each in (imitated.output, *imitated.gradients.values())):
        return rounding_fault(plain, imitated, found)
    return Note(
        message=f"its values leave the range of {half} at S={x.shape[1]}: nothing can be said of its gradients in it",
        where=definition_place(pair.low.module),
    )


def _place(pair: Twins, path: str) -> Place:
    """The module, at the line that runs in half precision alone where there is one."""
    sp = pair.low
    wide = pair.wide.input(_length(sp.subject), _ROWS)
    low = wide.to(pair.dtype) if wide.is_floating_point() else wide
    place = replace(definition_place(sp.module.get_submodule(path)), module=path)
    with unobserved():
        return at_line_apart(sp.subject, place, partial(passed, sp, low), partial(passed, pair.wide, wide))


def _length(subject: Subject) -> int:
    return min(_LENGTH, subject.max_length)


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
)
