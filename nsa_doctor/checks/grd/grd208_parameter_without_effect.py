"""GRD208 parameter-without-effect

Detects: a trainable parameter that no call uses, whatever the length, the batch, the mode and the other weights are, or
    that is used and changes no output. One that a method names, but no call tried has come to, is a note, unless
    another layer of the same class and list uses its own; so is one that changes what the module returns beside what is
    handed on; so are none of experts that no token is sent to. Where forward raises under autograd and serves without,
    parts are found that it computes with and of which it reads nothing to the end.
Matters: memory and optimizer state are spent on what cannot learn, a checkpoint holds noise, and DDP waits for its
    gradient (find_unused_parameters=False). Most often a line of the forward was forgotten.
Fix: use it in forward, or remove it; freeze it (`requires_grad_(False)`) where it waits for another stage.

Example:
    # faulty
    self.up, self.gate = nn.Linear(dim, wide), nn.Linear(dim, wide)
    y = self.down(silu(self.up(x)))  # and the gate is never called
    # correct
    y = self.down(silu(self.gate(x)) * self.up(x))
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.not_handed_on import moved_elsewhere
from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS, listed
from nsa_doctor.checks._shared.without_effect import Idle, idle, line_left_out, together
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.first_steps import of_first_steps
from nsa_doctor.probes.gradients.dropped_values import dropped_values
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_LENGTH = 16


def run(subject: Subject) -> Iterator[Finding | Note]:
    if not {"train", "eval"} & set(subject.modes):
        yield from _by_values(subject)
        return
    found = idle(subject)
    if not found:
        return
    root = built(subject, mode="train").module
    beside, notes = moved_elsewhere(subject, [name for each in found if each.is_used for name in each.names])
    sp = built(subject)
    first = of_first_steps(sp, [name for each in found for name in each.names], min(_LENGTH, subject.max_length))
    asked = {*beside, *first}
    found = [replace(each, names=tuple(name for name in each.names if name not in asked)) for each in found]
    wrong = [each for each in found if each.names and (not each.is_mentioned or each.is_used or each.used_beside)]
    for each in together(root, wrong)[:MOST_FINDINGS]:
        place, why = _place(root, each)
        flat = "without effect on any output, with a gradient of zeros or of rounding alone"
        beside_it = f", though {each.used_beside} is used" if each.used_beside else ""
        what = flat if each.is_used else f"that no call uses{beside_it}"
        yield Finding(
            message=f"{listed(each.names)} {what}, at several lengths, batches and weights{why}",
            where=place,
            evidence={"parameters": ",".join(each.names), "num_parameters": len(each.names)},
            repro=command_for(subject, "GRD208"),
        )
    yield from notes
    if named := [each for each in found if each.names and each.is_mentioned and not (each.is_used or each.used_beside)]:
        others = f" (and {len(named) - 1} others)" if len(named) > 1 else ""
        message = f"{named[0].path}{others} is used by no call that was tried, though its class names it"
        yield Note(message=message, where=_place(root, named[0])[0])


def _by_values(subject: Subject) -> Iterator[Finding]:
    for each in dropped_values(subject)[:MOST_FINDINGS]:
        yield Finding(
            message=f"{listed(each.names)} without effect on any output, in training mode and out of it, at several "
            "lengths and weights; the last of what is computed with them is made here, and read by nothing",
            where=in_subject(each.place, built(subject).module),
            evidence={"parameters": ",".join(each.names), "num_parameters": len(each.names)},
            repro=command_for(subject, "GRD208"),
        )


def _place(root: nn.Module, found: Idle) -> tuple[Place, str]:
    """The idle module at the line that leaves it out, and why that is the line."""
    path = found.path if found.path not in found.names else found.path.rpartition(".")[0]
    line, why = line_left_out(root, found)
    return replace(line, module=path, module_class=type(part_at(root, path)).__name__), why


def planted(subject: Subject) -> Subject:
    class Spare(nn.Module):
        """The subject, and a layer that is never called."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.spare = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output

    return replace(subject, build=lambda _seed: Spare(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "GRD401"),
    explained_by=("GRD201", "GRD202", "GAT101", "GAT104"),
)
