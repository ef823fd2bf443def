"""FWD304 low-precision-strays

Detects: an output further from float64 than its precision explains; positions that merge in it or under autocast;
values that are rounded to less than the module's own precision before they are sorted or the largest are chosen.
Matters: sums kept in half precision stop growing, positions merge beyond 256, squares cancel; nothing says why.
Fix: keep running sums, variances, positions and softmax denominators in float32, whatever the inputs are in.

Example:
    # faulty
    positions = torch.arange(S, dtype=x.dtype)  # 256 and 257 are one number in bfloat16
    angles = positions[:, None] * frequencies
    # correct
    positions = torch.arange(S, dtype=torch.float32)
    angles = positions[:, None] * frequencies
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from nsa_doctor.checks._shared.merged import merged
from nsa_doctor.checks._shared.rounding_inputs import rounding_inputs
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.asked_dtype import asks_for_dtype
from nsa_doctor.probes.numerics.rounding_budget import Stray, Twins, first_stray, longest_stray, twins
from nsa_doctor.probes.numerics.straying_operation import straying_operation
from nsa_doctor.subject.contract import Subject

# The budget is one rounding of every parameter and module output. Between two of those lie up to 16 operations, each of
# which may round once more: √16. Some module alone, or the whole, must go twice as far.
_MOST_BUDGETS = 4.0
_WORTH_TELLING = 1e-3  # of the output: float32 no better than float16
_LENGTHS = {"wide": (128, 64, 16), "half": (768, 384, 160, 64)}  # integers beyond 256 are not all bfloat16 numbers


def run(subject: Subject) -> Iterator[Finding | Note]:
    yield from (positions := list(merged(subject)))
    if any(isinstance(item, Finding) for item in positions):
        return
    try:
        pair = twins(subject, subject.dtype)
    except SubjectFailedError as failure:
        raise NotApplicableError(f"it does not run in float64, to compare {subject.dtype} with") from failure
    for name, prepare in rounding_inputs(subject):
        x, found = longest_stray(pair, _LENGTHS["half" if pair.rounding.itemsize < 4 else "wide"], prepare)
        if not math.isfinite(found.ratio) and pair.dtype.itemsize < 4:
            continue  # half precision overflows: the NAN checks tell of it
        local = first_stray(pair, x, _is_far_beyond) if _is_beyond(found) else None
        if local is not None or _is_far_beyond(found):
            yield _finding(subject, pair, x, found, local, name)
            return


def _is_beyond(found: Stray, most: float = _MOST_BUDGETS) -> bool:
    return not (found.ratio <= most or found.relative <= _WORTH_TELLING)


_is_far_beyond = partial(_is_beyond, most=2 * _MOST_BUDGETS)


def _finding(
    subject: Subject, pair: Twins, x: Tensor, found: Stray, local: tuple[str, Stray] | None, name: str
) -> Finding | Note:
    path = local[0] if local else ""
    alone = f"; handed exact values, {path} alone is off {local[1].ratio:.3g} times as far" if local else ""
    operation, place = straying_operation(pair, x, path)
    message = f"{found.words(pair, f'on {name} at S={x.shape[1]}')}{alone}"
    message += f"; it strays in {operation}" if operation else ""
    where = replace(place, module=path)
    if local is not None and asks_for_dtype(part_at(pair.wide.module, path)):
        return Note(
            message=f"{message}; its code asks for the dtype, and may compute otherwise in float64", where=where
        )
    return Finding(
        message=message,
        where=where,
        evidence={"length": x.shape[1], "dtype": pair.low.dtype, **found.evidence},
        repro=command_for(subject, "FWD304"),
    )


def planted(subject: Subject) -> Subject:
    class VarianceByDifference(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            variance = x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()
            output: Tensor = self.inner(x) * (variance.clamp(min=0) + 1e-6).rsqrt()
            return output

    return replace(subject, build=lambda seed: VarianceByDifference(subject.build(seed)))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "NAN101"),
    explained_by=("NAN103", "NAN104", "NAN105"),
    unless=("stochastic",),
)
