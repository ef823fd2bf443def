"""GRD215 evaluation-changes-training

Detects: a training loop in which a step is another after an evaluation: parts left in eval(), parameters or gradients
    that the evaluation changed, a random generator that it seeds; an evaluation that gives no finite loss, or that of
    its first or last batch alone; and one in which parts run in training mode, so that its loss is a draw or running
    statistics move.
Matters: dropout is off after the first evaluation; or the loss of held-out batches is not that of the model.
Fix: `model.eval()` and `torch.no_grad()` around all of the evaluation, and what the mode was given back to the same
module afterwards.

Example:
    # faulty
    model.eval()
    losses = [loss_of(batch) for batch in batches]
    model.decoder.train()
    # correct
    was_training = model.training
    model.eval()
    losses = [loss_of(batch) for batch in batches]
    model.train(was_training)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.evaluated import Evaluation
from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.training_loop import TrainingLoop


def run(subject: Subject) -> Iterator[Finding | Note]:
    evaluation = Evaluation(subject, lengths_for(subject)[0])
    looked = (evaluation.another_step, evaluation.in_training_mode, evaluation.of_one_batch, evaluation.seeding)
    found = next((finding for look in looked for finding in look()), None)
    if found is not None:
        yield replace(found, repro=command_for(subject, "GRD215"))
    else:
        yield from evaluation.notes()


def planted(subject: Subject) -> Subject:
    def begin(module: nn.Module) -> TrainingLoop:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

        def loss_of(batches: list[Tensor]) -> Tensor:
            return torch.stack([subject.forward(module, each).square().mean() for each in batches]).mean()

        def step(batches: list[Tensor]) -> Tensor:
            loss = loss_of(batches)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def evaluate(batches: list[Tensor]) -> Tensor:
            loss = loss_of(batches)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(0.5)
            return loss.detach()

        return TrainingLoop(step=step, evaluate=evaluate)

    return replace(subject, loop=begin)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("loop",), blocked_by=("NAN101",))
