"""Rows that a step takes no gradient of are found, at the line that clears it where one does; others are silent."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject

WORDS = 24
Step = Callable[[Any, torch.optim.Optimizer, Tensor], Tensor]


class Words(nn.Module):
    """The next word of each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.drop, self.head = nn.Embedding(WORDS, 8), nn.Dropout(0.1), nn.Linear(8, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.drop(self.embedding(ids)).cumsum(1).tanh())


def loss_of(module: nn.Module, ids: Tensor, count: int | Tensor) -> Tensor:
    """Without the padding 0, divided by a number of tokens."""
    logits, targets = module(ids[:, :-1]), ids[:, 1:]
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum") / count


def cleared_between(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    losses = []
    for part in ids.chunk(2):
        optimizer.zero_grad()  # here
        losses.append(loss_of(module, part, (ids[:, 1:] != 0).sum()))
        losses[-1].backward()
    optimizer.step()
    return torch.stack(losses).sum().detach()


def without_the_last(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(module, ids[:-1], ids.numel())
    loss.backward()
    optimizer.step()
    return loss.detach()


def accumulated(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    losses = [loss_of(module, part, ids.numel()) for part in ids.chunk(2)]
    for loss in losses:
        loss.backward()
    optimizer.step()
    module.zero_grad()
    return torch.stack(losses).sum().detach()


def in_parts_of_three(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Rows that fill no part are left for later."""
    optimizer.zero_grad()
    losses = [loss_of(module, part, ids.numel()) for part in ids.split(3) if len(part) == 3]
    for loss in losses:
        loss.backward()
    optimizer.step()
    return torch.stack(losses).sum().detach()


def a_step_a_part(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    for part in ids.chunk(2):
        optimizer.zero_grad()
        loss = loss_of(module, part, part.numel())
        loss.backward()
        optimizer.step()
    return loss.detach()


def examined(train_step: Step) -> Result:
    subject = small_subject(Words, train_step=train_step, input="tokens", width=WORDS, max_length=80)
    return run_check(registry.load("GRD223"), subject)


def test_rows_whose_gradients_are_cleared_are_found_where_they_are() -> None:
    (finding,) = examined(cleared_between).findings
    assert "6 of 12 rows of a batch hold changes no gradient" in finding.message
    assert finding.message.endswith("(rows 0, 1, 2, 3, 4, 5); gradients are cleared between its backward passes")
    assert is_marked(finding.where.file, finding.where.line)


def test_rows_that_are_left_out_otherwise_are_a_note() -> None:
    result = examined(without_the_last)
    assert (result.findings, len(result.notes)) == ((), 1)
    assert "1 of 12 rows of a batch hold changes no gradient of a training step at S=67 (rows 11)" in result.notes[0]


def hardest(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """The larger half of the losses of rows."""
    optimizer.zero_grad()
    loss = torch.stack([loss_of(module, row[None], 1) for row in ids]).topk(max(1, len(ids) // 2)).values.sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("train_step", [accumulated, in_parts_of_three, hardest])
def test_a_step_on_all_rows_or_on_whole_parts_is_silent(train_step: Step) -> None:
    result = examined(train_step)
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason


def test_a_step_a_part_is_not_said_to_leave_rows_out() -> None:
    assert examined(a_step_a_part).verdict is Verdict.SKIP
