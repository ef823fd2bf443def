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
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import again
from nsa_doctor.probes.attention.handed import handed
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.numerics.writes import first_written
from nsa_doctor.subject.contract import Subject

_MODES: tuple[Mode, ...] = ("eval", "train")


def run(subject: Subject) -> Iterator[Finding]:
    length = odd_lengths(subject)[0]
    for mode in _MODES:
        if mode not in subject.modes:
            continue
        examined = built(subject, mode=mode, is_randomised=False)
        for one in handed(examined, length):
            written = first_written(subject, examined.module, one.call, one.given)
            if written is None:
                continue
            by = f" by {written.by.operation}" if written.by.operation else ""
            where = "" if one.name == "forward" else f" of {one.name}"
            yield Finding(
                message=f"{written.num_values} of {written.num_all} values of {written.argument}{where} are overwritten"
                f"{by} at S={one.length}",
                where=written.by.place,
                evidence={"length": one.length, "mode": mode, "operation": written.by.operation, "seam": one.name},
                repro=again(subject, "FWD208"),
            )
            return


def planted(subject: Subject) -> Subject:
    def clamps_what_it_was_given(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x.clamp_(x.min() * 0.5, x.max() // 2 if x.dtype == torch.int64 else x.max() / 2))

    return replace(subject, forward=clamps_what_it_was_given)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", priority=410, fuzzed=("argument written",))
