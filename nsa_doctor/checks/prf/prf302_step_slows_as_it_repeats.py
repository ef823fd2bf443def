"""PRF302 step-slows-as-it-repeats

Detects: a step that runs more operations, or produces more bytes, each time it is repeated at the same lengths, beyond
    the bounds of what it walks over.
Matters: tokens per second fall all night long, and no single step is to blame.
Fix: look at the line named: something it walks over or joins is added to by every step, and never cleared.

Example:
    # faulty
    self.seen.append(x.detach())
    mean = torch.stack(self.seen).mean(0)
    # correct
    self.mean = self.mean.lerp(x.detach(), 0.01)
    mean = self.mean
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.step_costs import STEPS_OF_A_CYCLE, Step, Steps, grows_steadily, has_gone_on
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    modes: tuple[Mode, ...] = ("train", "no_grad")
    for mode in modes:
        if mode not in subject.modes:
            continue
        steps = Steps(subject, mode)
        if (grown := steps.grow(lambda taken: bool(_slowing(taken)), _goes_on)) is not None:
            yield _finding(steps, grown[0][0], grown[1][-1])
            return


def _finding(steps: Steps, first: Step, last: Step) -> Finding:
    grown = {place: made - first.made_by_place.get(place, 0) for place, made in last.made_by_place.items()}
    worst = max(grown, key=lambda place: grown[place])
    return Finding(
        message=f"the same {STEPS_OF_A_CYCLE} steps do more each time: after {last.at * STEPS_OF_A_CYCLE} they run "
        f"{last.num_operations:,} operations that produce {last.made_bytes:,} bytes, after "
        f"{first.at * STEPS_OF_A_CYCLE} they ran {first.num_operations:,} that produced {first.made_bytes:,} "
        f"({steps.mode})",
        where=worst,
        evidence={
            "num_steps": steps.num_steps,
            "operations_first": first.num_operations,
            "operations_last": last.num_operations,
            "bytes_first": first.made_bytes,
            "bytes_last": last.made_bytes,
            "mode": steps.mode,
        },
        repro=command_for(steps.subject, "PRF302"),
    )


def planted(subject: Subject) -> Subject:
    past: list[Tensor] = []

    def joins_all_that_was(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        past.append(output.detach().mean())
        return output + 0 * torch.stack(past).mean()

    return replace(subject, forward=joins_all_that_was)


def _slowing(taken: list[Step]) -> list[Callable[[Step], int]]:
    """The amounts that every cycle has more of."""
    amounts: tuple[Callable[[Step], int], ...] = (lambda step: step.num_operations, lambda step: step.made_bytes)
    return [amount for amount in amounts if grows_steadily([amount(step) for step in taken])]


def _goes_on(first: list[Step], last: list[Step]) -> bool:
    return any(has_gone_on(amount, first, last) for amount in _slowing(last))


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "HNG101"), explained_by=("PRF301", "GRD403")
)
