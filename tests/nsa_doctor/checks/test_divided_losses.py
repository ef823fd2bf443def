"""A loss that is divided by its rows once more than a mean is found at its line; means, sums and pairs are not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa_doctor.core import registry
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

Loss = Callable[[Tensor, Tensor], Tensor]


def divided_mean(output: Tensor, x: Tensor) -> Tensor:
    return F.mse_loss(output, x) / x.shape[0]  # here: divided_mean


def mean_of_micro_batches(output: Tensor, x: Tensor) -> Tensor:
    total = torch.zeros(())
    for one, other in zip(output.split(1), x.split(1), strict=True):
        total = total + F.mse_loss(one, other) / len(x)
    return total.div(len(x))  # here: mean_of_micro_batches


def of_all_tokens(output: Tensor, x: Tensor) -> Tensor:
    losses = (output - x).square().mean(-1)
    losses = losses.mean() / x.shape[:2].numel()  # here: of_all_tokens
    return losses + 0


def mean(output: Tensor, x: Tensor) -> Tensor:
    return F.mse_loss(output, x)


def sum_of_rows(output: Tensor, x: Tensor) -> Tensor:
    return F.mse_loss(output, x, reduction="sum")


def sum_over_rows(output: Tensor, x: Tensor) -> Tensor:
    return F.mse_loss(output, x, reduction="sum") / len(x)


def contrast(output: Tensor, x: Tensor) -> Tensor:
    one, other = F.normalize(output.mean(1), dim=-1), F.normalize(x.mean(1), dim=-1)
    return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(x)))


def of_pairs(output: Tensor, x: Tensor) -> Tensor:
    return torch.cdist(output.mean(1), x.mean(1)).mean()


def of_the_spread(output: Tensor, x: Tensor) -> Tensor:
    return F.relu(1 - output.flatten(1).std(0)).mean() + F.mse_loss(output, x)


def without_a_derivative(output: Tensor, x: Tensor) -> Tensor:
    return (output - output.detach()).square().sum().sqrt() / len(x)


def nothing(output: Tensor, x: Tensor) -> Tensor:
    return (output - output.detach()).mean()


def test_a_step_that_returns_the_share_of_its_last_micro_batch_is_left_alone() -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        for part in x.split(1):
            share = F.mse_loss(module(part), part) / len(x)
            share.backward()
        optimizer.step()
        return share.detach()

    assert examined_step(step, "accumulates") == ()


def test_a_step_that_scales_its_gradients_once_more_is_found() -> None:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(module(x), x)
        (loss / len(x)).backward()  # here: scales
        optimizer.step()
        return loss.detach()

    assert examined_step(step, "scales") == ("scales",)


class Trained(nn.Module):
    """With a loss of its own, of labels."""

    def __init__(self, *, divides: bool) -> None:
        super().__init__()
        self.layer, self.divides = nn.Linear(8, 8), divides

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self(x).flatten(0, 1), labels.flatten())
        if self.divides:
            loss = loss / len(x)  # here: a method
        return loss


@pytest.mark.parametrize("divides", [True, False])
def test_a_loss_of_the_modules_own_is_asked(divides: bool) -> None:
    subject = Subject(
        name="trained",
        input="embeddings",
        width=8,
        build=lambda _seed: Trained(divides=divides),
        forward=lambda module, x: module(x),
        packages=(__name__,),
    )
    assert found_in(subject) == (("a method",) if divides else ())


def examined(loss: Loss, *, drops: float = 0.0) -> tuple[str, ...]:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        found = loss(module(x), x)
        found.backward()
        optimizer.step()
        return found.detach()

    return examined_step(step, loss.__name__, drops)


def examined_step(step: Callable[..., Tensor], name: str, drops: float = 0.0) -> tuple[str, ...]:
    subject = Subject(
        name=name,
        input="embeddings",
        width=8,
        build=lambda _seed: nn.Sequential(nn.Linear(8, 16), nn.Dropout(drops), nn.GELU(), nn.Linear(16, 8)),
        forward=lambda module, x: module(x),
        train_step=step,
        packages=(__name__,),
    )
    return found_in(subject)


def found_in(subject: Subject) -> tuple[str, ...]:
    result = run_check(registry.load("GRD239"), subject)
    assert result.verdict in ("PASS", "FAIL"), result.reason
    with open(__file__) as file:
        lines = file.read().split("\n")
    return tuple(lines[each.where.line - 1].partition("# here: ")[2] for each in result.findings)


@pytest.mark.parametrize("drops", [0.0, 0.3])
@pytest.mark.parametrize("loss", [divided_mean, mean_of_micro_batches, of_all_tokens])
def test_a_mean_that_is_divided_again_is_found(loss: Loss, drops: float) -> None:
    assert examined(loss, drops=drops) == (loss.__name__,)


@pytest.mark.parametrize(
    "loss", [mean, sum_of_rows, sum_over_rows, contrast, of_pairs, of_the_spread, without_a_derivative, nothing]
)
def test_what_is_no_mean_divided_again_is_left_alone(loss: Loss) -> None:
    assert examined(loss) == ()
