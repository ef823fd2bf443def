"""GRD209 gradients-changed-after-the-step

Detects: a training step that scales or clips gradients once the optimizer has stepped with them.
Matters: nothing of it reaches the parameters: the run looks clipped, and one bad batch throws it as far as it likes.
Fix: clip, unscale and average between backward and `optimizer.step()`.

Example:
    # faulty
    loss.backward()
    optimizer.step()
    clip_grad_norm_(model.parameters(), 1.0)
    # correct
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.late_writes import late_writes
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.training import new_optimizer, take_step
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject, mode="train")
    length = lengths_for(subject)[0]
    optimizer = new_optimizer(sp.module)
    with preserved_state(), torch.enable_grad():
        found = late_writes(sp, lambda: take_step(sp, optimizer, sp.input(length)))
        once_more = late_writes(sp, lambda: take_step(sp, optimizer, sp.input(length)))
    if not found or not once_more:
        return
    first = found[0]
    yield Finding(
        message=f"gradients are changed ({first.operation}) after the optimizer has stepped with them, which moves no "
        f"parameter, at S={length}",
        where=first.place,
        evidence={"length": length, "operation": first.operation, "operations": len(found)},
        repro=command_for(subject, "GRD209"),
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
