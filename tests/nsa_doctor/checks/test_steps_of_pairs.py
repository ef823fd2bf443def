"""Training steps on pairs of rows, of which one row has none, and loops whose loss reads a queue that they move."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("queue", functional.normalize(torch.randn(16, WIDTH), dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def vectors(self, x: Tensor) -> Tensor:
        return functional.normalize(self(x).mean(1), dim=-1)


def apart(module: Rows, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    """Rows are to be unlike each other: a mean over no pairs is NaN."""
    optimizer.zero_grad()
    vectors = module.vectors(x)
    others = ~torch.eye(len(x), dtype=torch.bool)
    loss = functional.mse_loss((vectors @ vectors.T)[others], torch.zeros(int(others.sum())))
    loss.backward()
    optimizer.step()
    return loss


def never_finite(module: Rows, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = module.vectors(x)[:0].square().mean()
    loss.backward()
    optimizer.step()
    return loss


class Queued:
    """Each micro-batch is told from what is in a queue, and then put there."""

    def __init__(self, module: Rows) -> None:
        self.module, self.optimizer = module, torch.optim.SGD(module.parameters(), lr=0.1)

    def step(self, batches: list[Tensor]) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for x in batches:
            vectors = self.module.vectors(x)
            scores = torch.cat((torch.ones(len(x), 1), vectors @ self.module.queue.clone().T), 1) / 0.1
            loss = functional.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long)) / len(batches)
            loss.backward()
            self.module.queue = torch.cat((vectors.detach(), self.module.queue))[:16]
            total += float(loss)
        self.optimizer.step()
        return total


def examined(code: str, **given: object) -> Result:
    return run_check(registry.load(code), small_subject(Rows, width=WIDTH, max_length=80, **given))


def test_what_is_not_finite_on_one_row_alone_is_a_note() -> None:
    result = examined("NAN108", train_step=apart)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert "not finite on one row, but not on 4" in result.notes[0]


def test_parameters_that_move_on_more_rows_move() -> None:
    assert examined("GRD205", train_step=apart).findings == ()


@pytest.mark.parametrize("code", ["NAN108", "GRD205"])
def test_what_is_never_finite_is_found(code: str) -> None:
    assert examined(code, train_step=never_finite).findings


def test_a_loss_that_reads_what_the_one_before_left_is_not_weighed() -> None:
    result = examined("GRD214", loop=lambda module: TrainingLoop(step=Queued(module).step))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
