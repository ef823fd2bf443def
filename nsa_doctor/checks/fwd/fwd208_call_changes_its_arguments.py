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

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.checks._shared.odd_calls import OddCall, odd_calls
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.handed import Handed, handed
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.writes import first_written
from nsa_doctor.subject.contract import Subject

_MODES: tuple[Mode, ...] = ("eval", "train")


def run(subject: Subject) -> Iterator[Finding]:
    length = odd_lengths(subject)[0]
    modes = [mode for mode in _MODES if mode in subject.modes]
    calls = ((built(subject, mode=mode, is_randomised=False), mode) for mode in modes)
    found = (_written(subject, sp, one, mode) for sp, mode in calls for one in handed(sp, length))
    first = next((finding for finding in found if finding), None)
    if first is None and subject.profile != "smoke":
        first = next((finding for odd in odd_calls(subject, length) if (finding := _of(odd))), None)
    yield from [first] if first else []


def _of(odd: OddCall) -> Finding | None:
    """None where the call is refused: a dtype, a layout or a circumstance is for other checks to tell."""
    under = f" under {odd.under}" if odd.under else ""
    with unobserved(), suppress(SubjectFailedError):
        return _written(odd.sp.subject, odd.sp, Handed("forward", {"the input": odd.given}, odd.call), "eval", under)
    return None


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
