"""GRD209 gradients-changed-out-of-time

Detects: a training step that clips gradients before its last backward pass has added to them, or that scales or clips
    them once the optimizer has stepped.
Matters: micro-batches count for more the later they come; or nothing of it reaches the parameters: the run looks
    clipped, and one bad batch throws it as far as it likes.
Fix: clip, unscale and average between the last backward pass and `optimizer.step()`.

Example:
    # faulty
    for part in parts:
        (loss_of(part) / len(parts)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    # correct
    for part in parts:
        (loss_of(part) / len(parts)).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.training import new_optimizer, take_step
from nsa_doctor.probes.model.untimely_writes import UntimelyWrite, early_writes, late_writes
from nsa_doctor.subject.contract import Subject

_ROWS = 4  # which a loop may take by one or by two


def run(subject: Subject) -> Iterator[Finding]:
    length = lengths_for(subject)[0]
    with preserved_state(), torch.enable_grad():
        sp = built(subject, mode="train")
        found, again = (late_writes(sp, _step(sp, length, 1)) for _ in range(2))
        if found and again:
            yield _finding(sp, found, "after the optimizer has stepped with them, which moves no parameter", length)
            return
        sp = built(subject, mode="train")
        early = attempt(lambda: early_writes(sp, _step(sp, length, _ROWS)))
        if not isinstance(early, Caught) and early:
            yield _finding(sp, early, "before the last backward pass of the step has added to them", length)


def _step(sp: BuiltModule, length: int, rows: int) -> Callable[[], float]:
    optimizer = new_optimizer(sp.module)
    return lambda: take_step(sp, optimizer, sp.input(length, rows))


def _finding(sp: BuiltModule, found: list[UntimelyWrite], when: str, length: int) -> Finding:
    first = found[0]
    return Finding(
        message=f"gradients are changed ({first.operation}) {when}, at S={length}",
        where=in_subject(first.place, sp.module),
        evidence={"length": length, "operation": first.operation, "operations": len(found)},
        repro=command_for(sp.subject, "GRD209"),
    )


def planted(subject: Subject) -> Subject:
    step = subject.train_step
    assert step is not None

    def clips_too_late(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = subject.forward(module, x).square().mean()
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        return loss

    return replace(subject, train_step=clips_too_late)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("train_step",), profile="smoke")
