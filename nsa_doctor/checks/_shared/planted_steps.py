"""The steps of a loop in which a bug is planted elsewhere: in its optimizer, its snapshots or its evaluation."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject


def descent(subject: Subject, module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[list[Tensor]], Tensor]:
    """Steps down the mean square of the output."""

    def step(batches: list[Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([subject.forward(module, each).square().mean() for each in batches]).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
