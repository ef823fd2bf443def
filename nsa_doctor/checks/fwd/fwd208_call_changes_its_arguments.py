"""FWD208 call-changes-its-arguments

Detects: a forward pass that writes into the tensor it was given, or one of its parts, asked alone, that does: an
attention into its slots, a choice into its scores, a packed pass into its offsets.
Matters: the caller's data is not what it was: a residual adds the wrong thing, a second use reads another value.
Fix: build a new tensor at the line named (`x = x + y` in place of `x += y`); `.to(dtype)` of the same dtype is no copy.

Example:
    # faulty
    x += self.attend(self.norm(x))  # writes into the caller's tensor
    return x
    # correct
    return x + self.attend(self.norm(x))
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import VALUES, Mode, Point
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.handed import Handed, handed
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.circumstances import circumstances
from nsa_doctor.probes.model.inputs import ascending, begun_again, make_input
from nsa_doctor.probes.numerics.writes import first_written
from nsa_doctor.subject.contract import Subject

_MODES: tuple[Mode, ...] = ("eval", "train")
_HALVES = ("bfloat16", "float16")
_NUM_ROWS = 3


def run(subject: Subject) -> Iterator[Finding]:
    length = odd_lengths(subject)[0]
    modes = [mode for mode in _MODES if mode in subject.modes]
    calls = ((built(subject, mode=mode, is_randomised=False), mode) for mode in modes)
    found = (_written(subject, sp, one, mode) for sp, mode in calls for one in handed(sp, length))
    first = next((finding for finding in found if finding), None)
    if first is None and subject.profile != "smoke":
        odd = chain(_of_odd_input(subject, length), _under_circumstances(subject, length))
        first = next((finding for finding in odd if finding), None)
    yield from [first] if first else []


def _of_odd_input(subject: Subject, length: int) -> Iterator[Finding | None]:
    """Forward alone, on several rows, in other dtypes, on memory that is transposed and on values of a pattern."""
    for dtype in dict.fromkeys((subject.dtype, "bfloat16", "float64")):
        sp = built(subject, dtype=dtype, is_randomised=False)
        x = sp.input(length, batch=_NUM_ROWS)
        alike = [begun_again(x), *_of_values(sp, length)]
        if not x.is_floating_point():
            alike.append(ascending(x[:, : subject.width], subject.width))
        for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1), *alike):
            try:
                with unobserved():
                    found = _written(subject, sp, Handed("forward", {"the input": given}, sp.call), "eval")
                yield found
            except SubjectFailedError:  # a dtype or layout that it refuses is for other checks to tell
                continue


def _under_circumstances(subject: Subject, length: int) -> Iterator[Finding | None]:
    """Forward alone, under autocast and under all that must not matter."""
    plain = built(subject, is_randomised=False)
    sp = _OfTheTensorGiven(subject, plain.module, plain.dtype)
    x, device = sp.input(length, batch=_NUM_ROWS), torch.device(subject.device).type
    ways = [(each.words, partial(each.call, sp)) for each in circumstances(subject, sp.dtype)]
    ways += [(f"autocast to {half}", torch.autocast(device, getattr(torch, half))(sp.call)) for half in _HALVES]
    for words, call in ways:
        with suppress(SubjectFailedError):  # what is refused is for other checks to tell
            with unobserved():
                found = _written(subject, sp, Handed("forward", {"the input": x}, call), "eval", f" under {words}")
            yield found


class _OfTheTensorGiven(BuiltModule):
    """Is called with the caller's own tensor, not with a copy of it."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.call(x)


def _of_values(sp: BuiltModule, length: int) -> Iterator[Tensor]:
    points = (Point(length=length, dtype=sp.dtype, values=values) for values in VALUES)
    return (make_input(sp.subject, point, sp.subject.seed, torch.device(sp.subject.device)) for point in points)


def _written(subject: Subject, sp: BuiltModule, one: Handed, mode: Mode, under: str = "") -> Finding | None:
    written = first_written(subject, sp.module, one.call, one.given)
    if written is None:
        return None
    by = f" by {written.by.operation}" if written.by.operation else ""
    where = "" if one.name == "forward" else f" of {one.name}"
    return Finding(
        message=f"{written.num_values} of {written.num_all} values of {written.argument}{where} are overwritten"
        f"{by} at S={one.length}{under}" + ("" if sp.dtype == subject.dtype else f" in {sp.dtype}"),
        where=written.by.place,
        evidence={"length": one.length, "mode": mode, "operation": written.by.operation, "seam": one.name},
        repro=command_for(subject, "FWD208"),
    )


def planted(subject: Subject) -> Subject:
    def clamps_what_it_was_given(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x.clamp_(x.min() * 0.5, x.max() // 2 if x.dtype == torch.int64 else x.max() / 2))

    return replace(subject, forward=clamps_what_it_was_given)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", priority=410, fuzzed=("argument written",))
