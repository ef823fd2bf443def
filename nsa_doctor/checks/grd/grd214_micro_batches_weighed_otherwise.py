"""GRD214 micro-batches-weighed-otherwise

Detects: a step on several micro-batches whose gradient weighs them otherwise than the loss that the step returns:
    summed where the loss is a mean, each alike where the loss counts their tokens, the last one alone; or whose rate
    depends on how many there were before, as where a schedule counts them.
Matters: the more micro-batches a step has, the longer it is, or short ones count for more than their tokens; the loss
    that is logged is not what is descended.
Fix: divide each loss by what the step's whole loss is divided by: the number of its micro-batches, or of its tokens.

Example:
    # faulty
    for part in parts:
        loss_of(part).backward()
    optimizer.step()
    # correct
    for part in parts:
        (loss_of(part) * part.num_tokens / num_tokens).backward()
    optimizer.step()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.checks._shared.weighed import weighed_otherwise
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = lengths_for(subject)[0]
    found = weighed_otherwise(subject, length, subject.seed)
    again = None if found is None else weighed_otherwise(subject, length, subject.seed + 1)
    if found is None or again is None or (found.kind, found.right_where) != (again.kind, again.right_where):
        return
    if found.right_where:
        yield Note(message=f"{found.message}: right where {found.right_where}", where=found.place)
        return
    yield Finding(
        message=found.message,
        where=found.place,
        evidence={"length": length, **found.evidence},
        repro=command_for(subject, "GRD214"),
    )


def planted(subject: Subject) -> Subject:
    def begin(module: nn.Module) -> TrainingLoop:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

        def step(batches: list[Tensor]) -> float:
            optimizer.zero_grad()
            losses = [subject.forward(module, each).square().mean() for each in batches]
            for loss in losses:
                loss.backward()
            optimizer.step()
            return float(sum(losses)) / len(losses)

        return TrainingLoop(step=step)

    return replace(subject, loop=begin)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("loop",), blocked_by=("NAN101",))
