"""A loss of tensors of different numbers of axes whose rows do not meet is found; pairs that are asked for pass."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


class Counts(nn.Module):
    """States of tokens, and a number [B, S, 1] for each."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.GRU(DIM, DIM, batch_first=True), nn.Linear(DIM, 1)
        self.prior, self.scale = nn.Parameter(torch.zeros(17)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)[0]

    def numbers(self, x: Tensor) -> Tensor:
        return self.head(self(x))

    def tasks(self, x: Tensor) -> Tensor:
        """[B, 1, S]."""
        return self.numbers(x).mT


def weights(x: Tensor) -> Tensor:
    """[B]."""
    return x.sum((1, 2)).cos().exp()


def shares(net: Counts, x: Tensor) -> Tensor:
    counts = net.tasks(x).exp()
    share = counts / counts.sum(-1)  # here
    return -(x[..., 0].abs()[:, None] * share.log()).mean(-1).mean()


def _of_shares(counts: Tensor, wanted: Tensor) -> Tensor:
    totals = counts.sum(-1).clamp(min=1e-6)
    share = torch.div(counts, totals)  # here
    return -(wanted * share.log()).mean()


def with_an_axis_by_the_caller(net: Counts, x: Tensor) -> Tensor:
    return _of_shares(net.numbers(x).squeeze(-1).exp().unsqueeze(1), x[..., 0].abs().unsqueeze(1))


def with_an_axis_of_its_own(net: Counts, x: Tensor) -> Tensor:
    counts = net.numbers(x).squeeze(-1).exp()[:, None]
    return (counts / counts.sum(2)).log().mean()  # here


def weighed_rows(net: Counts, x: Tensor) -> Tensor:
    errors = (net.numbers(x) - x[..., :1]).square()
    return (errors * weights(x)).mean()  # here


def weighed_by_a_named_loss(net: Counts, x: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(net.numbers(x), x[..., :1].sigmoid(), weight=None) + (
        F.mse_loss(net.numbers(x), x[..., :1], reduction="none") * weights(x)  # here
    ).sum() / len(x)


def of_pictures(net: Counts, x: Tensor) -> Tensor:
    pictures = net(x).unsqueeze(1)
    middle = pictures.mean(dim=(-1, -2)).unsqueeze(-1)
    return (pictures - middle).abs().mean()  # here


def at_most(net: Counts, x: Tensor) -> Tensor:
    return torch.minimum(net.tasks(x), weights(x)[:, None].detach().contiguous().view(-1, 1)).mean()


def at_most_of_a_part(net: Counts, x: Tensor) -> Tensor:
    most = x[..., 0].amax(1, keepdim=True)
    return torch.minimum(net.tasks(x), most).mean()  # here


def chosen(net: Counts, x: Tensor) -> Tensor:
    values, otherwise = net.tasks(x), x[..., 0].amax(1, keepdim=True)
    return torch.where(values > 0, values, otherwise).mean()  # here


def raised(net: Counts, x: Tensor) -> Tensor:
    powers = x[..., 0].amax(1, keepdim=True).abs()
    return net.tasks(x).exp().pow(powers).mean()  # here


FAULTY = (shares, with_an_axis_by_the_caller, with_an_axis_of_its_own, weighed_rows, weighed_by_a_named_loss)
FAULTY += (of_pictures, at_most_of_a_part, chosen, raised)


def kept_axis(net: Counts, x: Tensor) -> Tensor:
    counts = net.tasks(x).exp()
    return (counts / counts.sum(-1, keepdim=True)).log().mean()


def weighed_by_rows(net: Counts, x: Tensor) -> Tensor:
    return ((net.numbers(x) - x[..., :1]).square() * weights(x)[:, None, None]).mean()


def weighed_rows_alone(net: Counts, x: Tensor) -> Tensor:
    return ((net.numbers(x) - x[..., :1]).square().mean((1, 2)) * weights(x)).mean()


def weighed_places(net: Counts, x: Tensor) -> Tensor:
    return (net.tasks(x) * net.prior[: x.shape[1]].exp()).square().mean()


def widened_by_a_table(net: Counts, x: Tensor) -> Tensor:
    return (net.numbers(x) * net.scale - x[..., :3]).square().mean() + (net.numbers(x) * net.scale).mean()


def each_by_every_weight(net: Counts, x: Tensor) -> Tensor:
    values = net.numbers(x).squeeze(-1)
    return (values[:, :, None] * weights(x)).cos().mean()


def every_pair(net: Counts, x: Tensor) -> Tensor:
    one, other = net(x).mean(1), x.mean(1)
    return (one[:, None] - other).square().sum(-1).exp().neg().mean()


def pair_of_slices(net: Counts, x: Tensor) -> Tensor:
    one, other = net(x).mean(1), x.mean(1)
    return torch.maximum(one[:, None, :2], other[:, :2]).mean()


def contrastive(net: Counts, x: Tensor) -> Tensor:
    one, other = net(x).mean(1, keepdim=True), x.mean(1)
    logits = (one * other).sum(-1)
    return F.cross_entropy(logits, torch.arange(len(x)))


def by_a_product(net: Counts, x: Tensor) -> Tensor:
    return (net.tasks(x) @ x).square().mean() + (net(x).mean(1) @ x.mean(1).mT).mean()


def of_a_first_axis(net: Counts, x: Tensor) -> Tensor:
    """Time first: rows meet rows."""
    values = net.numbers(x).squeeze(-1).mT
    return (values * weights(x)).square().mean()


def a_bound_for_all(net: Counts, x: Tensor) -> Tensor:
    return torch.minimum(net.tasks(x), torch.tensor(0.5)).mean() + (net.tasks(x) * x.mean((0, 2))).mean()


HEALTHY = (kept_axis, weighed_by_rows, weighed_rows_alone, weighed_places, widened_by_a_table, each_by_every_weight)
HEALTHY += (every_pair, pair_of_slices, contrastive, by_a_product, of_a_first_axis, a_bound_for_all, at_most)


def examined(loss_of: Callable[[Any, Tensor], Tensor]) -> Result:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    subject = small_subject(Counts, width=DIM, max_length=64, spec=("causal",), train_step=step)
    return run_check(registry.load("GRD230"), subject)


@pytest.mark.parametrize("loss_of", FAULTY)
def test_rows_that_do_not_meet_are_found(loss_of: Callable[[Any, Tensor], Tensor]) -> None:
    result = examined(loss_of)
    (finding,) = result.findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), result


@pytest.mark.parametrize("loss_of", HEALTHY)
def test_rows_that_meet_or_pairs_that_are_asked_for_pass(loss_of: Callable[[Any, Tensor], Tensor]) -> None:
    result = examined(loss_of)
    assert result.verdict is Verdict.PASS, result
