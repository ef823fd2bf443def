"""GRD237 parameter-starts-where-flat

Detects: a parameter that the forward or a loss reads by a clamp, a relu or the like alone, all of whose values start
    where that is flat: above the clamp's end, say, or at zero under a relu.
Matters: its gradient is exactly zero, so that it stays there for the whole training run. A temperature that is not
    given as the logarithm that it is kept as starts, and ends, at its largest.
Fix: start it within the range, such as `torch.tensor(math.log(1 / 0.07))` for what is clamped at `math.log(100)`.

Example:
    # faulty
    self.log_scale = nn.Parameter(torch.tensor(1 / 0.07))  # and read as self.log_scale.clamp(max=4.6).exp()
    # correct
    self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.every_loss import AskedLoss, first_seen
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.flat_starts import FlatStart, flat_starts
from nsa_doctor.probes.behaviour.loss_calls import Batch, moved_by_losses
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_LENGTH = 17


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject, mode="train", is_randomised=False)
    x = sp.input(min(_LENGTH, subject.max_length), batch=2)
    in_forward = flat_starts(sp, lambda: sp(x))
    starts = [] if isinstance(in_forward, Caught) else in_forward
    found = [(AskedLoss("forward", sp, lambda: None), each) for each in starts]
    if not found:
        seen = attempt(lambda: first_seen(subject, flat_starts, is_as_it_starts=True))
        if isinstance(seen, Caught) and isinstance(in_forward, Caught):
            raise seen.error
        found = [seen] if isinstance(seen, tuple) else []
    batch = Batch(x=x, lengths=torch.full((2,), x.shape[1], device=x.device))
    for asked, each in found:
        with unobserved(), torch.enable_grad():
            moved = moved_by_losses(sp, batch, [each.parameter])
        if not moved:
            yield _finding(subject, asked, each)
            return


def _finding(subject: Subject, asked: AskedLoss, each: FlatStart) -> Finding:
    return Finding(
        message=f"1 parameter ({each.parameter}) starts at {each.value:.3g}, where {each.function} is flat "
        f"({each.place.short_line}): nothing else in {asked.name} reads it, and it gets no gradient",
        where=_made(asked.sp, each),
        evidence={"parameters": each.parameter, "value": each.value, "operation": each.function},
        repro=command_for(subject, "GRD237"),
    )


def _made(sp: BuiltModule, each: FlatStart) -> Place:
    """The line that makes the parameter; the one that reads it where none is found."""
    path, _, name = each.parameter.rpartition(".")
    holder = part_at(sp.module, path)
    line = line_that_makes(holder, name)
    if line is None:
        return in_subject(each.place, sp.module)
    return replace(each.place, module=path, module_class=type(holder).__name__, **vars(line))


def planted(subject: Subject) -> Subject:
    def build(seed: int) -> nn.Module:
        module: Any = subject.build(seed)
        module.log_scale = nn.Parameter(torch.tensor(1 / 0.07))
        return module

    def scaled(module: Any, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output * module.log_scale.clamp(max=4.0).exp()

    forward: Callable[[nn.Module, Tensor], Tensor] = scaled
    return replace(subject, build=build, forward=forward)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102"),
    explained_by=("GRD202",),
)
