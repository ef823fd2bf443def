"""A part that no step gives a gradient is found where its loss is made a number; what is frozen is left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8
Loss = Callable[["Autoencoder", Tensor], Tensor]


class Autoencoder(nn.Module):
    """Tokens through a bottleneck."""

    def __init__(self, is_frozen: bool = False) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 3), nn.Linear(3, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.decoder.requires_grad_(not is_frozen)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x).tanh())


def whole(module: Autoencoder, x: Tensor) -> Tensor:
    return (module(x) - x).square().mean() + module.encoder(x).square().mean()


def of_a_number(module: Autoencoder, x: Tensor) -> Tensor:
    fit = (module(x) - x).square().mean()
    return fit.item() + module.encoder(x).square().mean()  # here


def of_a_detached_one(module: Autoencoder, x: Tensor) -> Tensor:
    made = module.decoder(module.encoder(x).tanh())
    fit = (made.detach() - x).square().mean()  # here
    return fit + module.encoder(x).square().mean()


def logs_a_number(module: Autoencoder, x: Tensor) -> Tensor:
    loss = whole(module, x)
    assert loss.item() > 0
    return loss


def examined(loss: Loss, is_frozen: bool = False) -> Result:
    def train_step(module: Any, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        value = loss(module, x)
        value.backward()
        optimizer.step()
        return value.detach()

    subject = small_subject(lambda: Autoencoder(is_frozen), train_step=train_step, width=WIDTH, max_length=80)
    return run_check(registry.load("GRD222"), subject)


@pytest.mark.parametrize("loss", [of_a_number, of_a_detached_one])
def test_a_part_whose_loss_is_a_number_is_found_at_that_line(loss: Loss) -> None:
    (finding,) = examined(loss).findings
    assert "of decoder get no gradient in 4 training steps" in finding.message
    assert is_marked(finding.where.file, finding.where.line)


@pytest.mark.parametrize(("loss", "is_frozen"), [(whole, False), (logs_a_number, False), (of_a_number, True)])
def test_what_is_trained_or_frozen_and_what_no_output_reads_is_silent(loss: Loss, is_frozen: bool) -> None:
    result = examined(loss, is_frozen)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
