"""FWD275 times-lose-digits

Detects: an argument of forward, in one pass or in steps of decoding, or of a loss of the module's own, that
    by its name is times (`times`, `timestamps`, `event_times`), of which the model reads differences alone, and which
    it rounds to float32 before it takes these: a shift of the clock by thousands changes nothing, one as large as
    seconds since 1970 the output.
Matters: float32 has steps of two minutes there, so that all gaps come out as 0 or as 128 seconds; with times that
    begin at 0, as in tests, nothing shows.
Fix: take the difference in the dtype that the times have, in float64, and cast what comes of it.

Example:
    # faulty
    gaps = times.to(x.dtype).diff(dim=1)
    # correct
    gaps = times.double().diff(dim=1).to(x.dtype)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.asked_with_times import asked_with_times
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.lost_times import FAR, LostDigits, lost_digits, why_small
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 11, 3
_HALVES = ("float16", "bfloat16")


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = built(subject, dtype="float32" if subject.dtype in _HALVES else None)
    x = sp.input(min(_LENGTH, subject.max_length), _ROWS)
    taken: list[str] = []
    reported: set[tuple[str, int]] = set()
    for asked in asked_with_times(sp, x):
        with torch.no_grad(), unobserved():  # what it raises for values that it does not take is none of its faults
            lost = attempt(lambda asked=asked: lost_digits(sp, asked.argument, x, asked.call, taken))
        if isinstance(lost, LostDigits) and (line := (lost.place.file, lost.place.line)) not in reported:
            reported.add(line)
            unit = f"{lost.unit:.0f} * " if lost.unit != 1 else ""
            made = f"; they are rounded in {lost.operation} before differences are taken" if lost.operation else ""
            message = (
                f"the argument {asked.argument} of {asked.name} loses digits: a shift of all times by {unit}2**30, "
                f"as of seconds since 1970, changes the answer by {lost.difference:.2g}, and one by {unit}2**14 by "
                f"{lost.near:.2g}, at S={x.shape[1]}{made}"
            )
            where = in_subject(lost.place, sp.module)
            if reason := why_small(sp.module, asked.argument):
                yield Note(message=f"{message}; {reason}", where=where)
                continue
            yield Finding(
                message=message,
                where=where,
                evidence={"argument": asked.argument, "shift": lost.unit * FAR, "difference": lost.difference},
                repro=command_for(subject, "FWD275"),
            )
    if not taken:
        raise NotApplicableError("its forward takes no times, or none that were found to change its output")


def planted(subject: Subject) -> Subject:
    class Timed(nn.Module):
        """The subject, whose answer is scaled by how long ago the first token was."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            if times is None:
                return output
            times = times.to(output.dtype)
            return output * (1 + times - times[:, :1])[..., None]

    return replace(subject, build=lambda _seed: Timed(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "FWD210"),
    unless=("stochastic",),
)
