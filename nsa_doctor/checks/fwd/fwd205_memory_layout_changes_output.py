"""FWD205 memory-layout-changes-output

Detects: input of equal values that is a view of another tensor, or lies in memory in another way (transposed, strided,
expanded, at an offset in its storage), and gives another output or one of another shape, or raises; a layout that is
refused by name is noted.
Matters: a slice, a transpose or an expanded batch upstream silently changes the result.
Fix: take strides from the tensor, not from its shape; `reshape` in place of `as_strided` or `view` on raw storage.

Example:
    # faulty
    heads = x.as_strided((B, S, H, D), (S * H * D, H * D, D, 1))  # right for contiguous input alone
    # correct
    heads = x.unflatten(-1, (H, D))
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, departure_finding, failing_finding, odd_lengths, went_wrong
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Trouble
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.layouts import LAYOUTS, PLAIN_LAYOUTS, laid_out
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_NUM_ROWS = 3
_WORDS = {
    "view": "input that is a view of another tensor, and contiguous,",
    "offset": "contiguous input at an offset in its storage, as rows of a larger batch are,",
}
_NAMES_A_LAYOUT = re.compile(r"contiguous|strid|layout|memory format|expand|transpos|\bviews?\b", re.IGNORECASE)


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = odd_lengths(subject)[0]
    for layout in LAYOUTS:
        try:
            found = _examine(subject, length, layout)
        except SubjectFailedError as failure:
            trouble = trouble_of(failure, subject.packages)
            is_named = layout not in PLAIN_LAYOUTS and _NAMES_A_LAYOUT.search(trouble.message)
            if trouble.kind == "wrong_shape" or (trouble.kind == "raised" and not is_named):
                yield _refused(subject, length, layout, trouble)
                return
            yield Note(message=f"{layout} input is refused: {failure}")  # it says what to do, so nobody is misled
            continue
        if found is not None:
            yield found
            return


def _examine(subject: Subject, length: int, layout: str) -> Finding | None:
    found = confirmed(subject, lambda subject: _changed(subject, length, layout))
    if found is None:
        return None
    built, x = _equal_rows(subject, length)
    plain, other = x.clone(), laid_out(x, layout)
    divergence = first_divergence(built, lambda: built.call(plain), lambda: built.call(other), {})
    message = f"{layout} input gives another output than contiguous input at S={length}"
    return departure_finding(subject, "FWD205", message, divergence, found, length=length, layout=layout)


def _changed(subject: Subject, length: int, layout: str) -> Departure | None:
    base = baseline(*_equal_rows(subject, length))
    with torch.no_grad(), unobserved():
        output = base.built.call(laid_out(base.x, layout))
    return base.departure(output)


def _refused(subject: Subject, length: int, layout: str, trouble: Trouble) -> Finding:
    built, x = _equal_rows(subject, length)
    ways = (partial(built.call, given) for given in (laid_out(x, layout), x.clone()))
    message = f"with {_WORDS.get(layout, f'{layout} input')} the subject {went_wrong(trouble)} at S={length}"
    return failing_finding(built, "FWD205", message, trouble, ways, length=length, layout=layout)


def _equal_rows(subject: Subject, length: int) -> tuple[BuiltModule, Tensor]:
    built = comparable_module(subject)
    row = built.input(length)
    return built, row.expand(_NUM_ROWS, *row.shape[1:]).contiguous()


def planted(subject: Subject) -> Subject:
    def reads_raw_memory(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x.as_strided(x.shape, x.clone(memory_format=torch.contiguous_format).stride()))

    return replace(subject, forward=reads_raw_memory)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD206",),
    explained_by=("FWD208", "FWD308"),
    priority=450,
    fuzzed=("depends on strides",),
)
