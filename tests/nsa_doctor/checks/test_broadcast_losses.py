"""A loss over all pairs of answers and targets is found at its line; pairs that are meant, and equal sizes, pass."""

import linecache
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.training_loop import TrainingLoop
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM = 8


def examined(make: Callable[[], nn.Module], **more: Any) -> Result:
    asked = {"width": DIM, "max_length": 64, "spec": ("causal",)} | more
    return run_check(registry.load("GRD230"), small_subject(make, **asked))


def is_marked(result: Result) -> bool:
    (finding,) = result.findings
    return linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


class Critic(nn.Module):
    """States of tokens, and heads that give a value."""

    def __init__(self, kind: str = "right") -> None:
        super().__init__()
        self.mix, self.head, self.second = nn.GRU(DIM, DIM, batch_first=True), nn.Linear(DIM, 1), nn.Linear(DIM, 1)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)[0]

    def values(self, x: Tensor) -> Tensor:
        """[B, 1]."""
        return self.head(self(x).mean(1))

    def of_tokens(self, x: Tensor) -> Tensor:
        """[B, S, 1]."""
        return self.head(self(x))


def step_of(loss_of: Callable[[Any, Tensor], Tensor], backward: str = "method") -> Callable[..., Tensor]:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module, x)
        if backward == "function":
            torch.autograd.backward(loss)
        else:
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def rewards(x: Tensor) -> Tensor:
    """[B]."""
    return x.sum((1, 2)).cos()


def mean_square(net: Critic, x: Tensor) -> Tensor:
    return F.mse_loss(net.values(x), rewards(x))  # here


def as_a_module(net: Critic, x: Tensor) -> Tensor:
    return nn.SmoothL1Loss(reduction="sum")(net.values(x), rewards(x)) / len(x)  # here


def huber(net: Critic, x: Tensor) -> Tensor:
    return F.huber_loss(input=rewards(x), target=net.values(x))  # here


def without_reduction(net: Critic, x: Tensor) -> Tensor:
    errors = F.l1_loss(net.values(x), rewards(x), reduction="none")  # here
    return errors.mean()


def gaussian(net: Critic, x: Tensor) -> Tensor:
    values = net.values(x)
    return F.gaussian_nll_loss(values, rewards(x), torch.ones_like(values))  # here


def plain(net: Critic, x: Tensor) -> Tensor:
    return (net.values(x) - rewards(x)).pow(2).mean()  # here


def other_side(net: Critic, x: Tensor) -> Tensor:
    missing = rewards(x) - net.values(x)  # here
    return 0.5 * (missing**2).sum(-1).mean() + 0.01 * net.head.weight.square().sum()


def absolute(net: Critic, x: Tensor) -> Tensor:
    return torch.abs(net.values(x).sub(rewards(x))).sum() / len(x)  # here


def likelihood(net: Critic, x: Tensor) -> Tensor:
    return -torch.distributions.Normal(net.values(x), 1.0).log_prob(rewards(x)).mean()  # here


def in_the_target(net: Critic, x: Tensor) -> Tensor:
    with torch.no_grad():
        target = rewards(x) + 0.9 * net.values(x)  # here
    return F.mse_loss(net.values(x), target)


def policy(net: Critic, x: Tensor) -> Tensor:
    advantages = rewards(x)
    return -(net.values(x) * advantages).mean()  # here


def clipped(net: Critic, x: Tensor) -> Tensor:
    ratio = net.values(x).exp()
    advantages = rewards(x)
    first = ratio * advantages  # here
    return -torch.min(first, ratio.clamp(0.8, 1.2) * advantages).mean()


def weighed(net: Critic, x: Tensor) -> Tensor:
    keep = (x[:, 0, 0] > -9).float()
    return ((net.values(x) - rewards(x)).square() * keep).sum() / keep.sum()  # here


def kept_axis(net: Critic, x: Tensor) -> Tensor:
    values = net(x).flatten(1).mean(1, keepdim=True)
    return (values - rewards(x)).square().mean()  # here


def of_images(net: Critic, x: Tensor) -> Tensor:
    return F.l1_loss(net(x)[:, None], x.cos())  # here


def of_tokens(net: Critic, x: Tensor) -> Tensor:
    return (net.of_tokens(x) - x.sum(-1)).square().mean()  # here


def of_tokens_by_name(net: Critic, x: Tensor) -> Tensor:
    return F.mse_loss(net.of_tokens(x), x.sum(-1))  # here


def targets_with_an_axis(net: Critic, x: Tensor) -> Tensor:
    target = x.sum((1, 2)).cos().unsqueeze(1)
    return F.mse_loss(net.values(x).squeeze(), target)  # here


FAULTY = (mean_square, as_a_module, huber, without_reduction, gaussian, plain, other_side, absolute, likelihood)
FAULTY += (in_the_target, policy, clipped, weighed, kept_axis, of_images, of_tokens, of_tokens_by_name)
FAULTY += (targets_with_an_axis,)


@pytest.mark.parametrize("loss_of", FAULTY)
def test_a_step_over_all_pairs_is_found(loss_of: Callable[[Any, Tensor], Tensor]) -> None:
    assert is_marked(examined(Critic, train_step=step_of(loss_of)))


@pytest.mark.parametrize("loss_of", [mean_square, plain, likelihood])
def test_a_loss_over_all_pairs_is_found(loss_of: Callable[[Any, Tensor], Tensor]) -> None:
    assert is_marked(examined(Critic, loss=loss_of))


def test_backward_may_be_a_function() -> None:
    assert is_marked(examined(Critic, train_step=step_of(plain, backward="function")))


def test_a_loop_over_all_pairs_is_found() -> None:
    def begin(net: nn.Module) -> TrainingLoop:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        step = step_of(plain)
        return TrainingLoop(step=lambda batches: step(net, optimizer, batches[0]))

    assert is_marked(examined(Critic, loop=begin))


def equal_sizes(net: Critic, x: Tensor) -> Tensor:
    return F.mse_loss(net.values(x).squeeze(-1), rewards(x))


def equal_tokens(net: Critic, x: Tensor) -> Tensor:
    return (net.of_tokens(x) - x.sum(-1, keepdim=True)).square().mean()


def ranking(net: Critic, x: Tensor) -> Tensor:
    scores, wanted = net.values(x).squeeze(-1), rewards(x)
    ahead = (scores[:, None] - scores) * (wanted[:, None] - wanted).sign()
    return F.relu(1 - ahead).mean()


def ranking_of_one_column(net: Critic, x: Tensor) -> Tensor:
    scores = net.values(x)
    return F.softplus(scores - scores.t()).mean()


def ranking_of_its_copy(net: Critic, x: Tensor) -> Tensor:
    scores = net.values(x)
    return (scores - scores.squeeze(-1).clone()).abs().mean()


def ranked_by_labels(net: Critic, x: Tensor) -> Tensor:
    scores, wanted = net.values(x), rewards(x)
    is_ahead = (wanted[:, None] > wanted[None]).float()
    return (F.softplus(scores.view(1, -1) - scores) * is_ahead).sum() / is_ahead.sum()


def energy_distance(net: Critic, x: Tensor) -> Tensor:
    drawn, seen = net.values(x).squeeze(-1), rewards(x)
    return 2 * (drawn[:, None] - seen).abs().mean() - (drawn[:, None] - drawn).abs().mean()


def _pairwise(first: Tensor, second: Tensor) -> Tensor:
    first = first.unsqueeze(-1)
    return (first - second).square()


def kernels(net: Critic, x: Tensor) -> Tensor:
    return -torch.exp(-_pairwise(net.values(x).squeeze(-1), rewards(x))).mean()


def squared_distances(net: Critic, x: Tensor) -> Tensor:
    one, other = net(x).mean(1), x.mean(1)
    sizes = one.square().sum(1, keepdim=True) + other.square().sum(1)
    return (sizes - 2 * one @ other.t()).clamp(min=0).mean()


def contrastive(net: Critic, x: Tensor) -> Tensor:
    one, other = F.normalize(net(x).mean(1), dim=-1), F.normalize(x.mean(1), dim=-1)
    logits = one @ other.t() / 0.1
    return F.cross_entropy(logits, torch.arange(len(x)))


def quantiles(net: Critic, x: Tensor) -> Tensor:
    """QR-DQN: each quantile against each of the target's."""
    current, target = net(x).mean(1), x.mean(1)
    missing = target[:, None, :] - current[:, :, None]
    tau = (torch.arange(DIM) + 0.5) / DIM
    each, wanted = current[:, :, None].expand_as(missing), target[:, None].expand_as(missing)
    losses = F.smooth_l1_loss(each, wanted, reduction="none")
    return ((tau[:, None] - (missing.detach() < 0).float()).abs() * losses).sum(-1).mean()


def quantiles_broadcast(net: Critic, x: Tensor) -> Tensor:
    current, target = net(x).mean(1), x.mean(1)
    losses = F.huber_loss(current.unsqueeze(-1), target.unsqueeze(-2), reduction="none")
    return losses.sum(-1).mean()


def one_target_for_many(net: Critic, x: Tensor) -> Tensor:
    return F.mse_loss(net(x).mean(1), rewards(x)[:, None]) + (net(x) - x.mean(1, keepdim=True)).square().mean()


def against_a_row(net: Critic, x: Tensor) -> Tensor:
    """Each value against a fixed grid, as histogram losses do."""
    grid = torch.linspace(-1, 1, 11)
    return (net.values(x) - grid).square().min(1).values.mean() + (net.values(x) - grid).square().mean()


def chamfer(net: Critic, x: Tensor) -> Tensor:
    values, seen = net.values(x), rewards(x)
    distances = (values - seen).abs()
    return distances.min(0).values.mean() + distances.min(1).values.mean()


def assigned(net: Critic, x: Tensor) -> Tensor:
    values, seen = net.values(x), rewards(x)
    weights = (-(values - seen).abs()).softmax(-1)
    return (weights @ seen).square().mean()


def relative_positions(net: Critic, x: Tensor) -> Tensor:
    place = torch.arange(x.shape[1])
    decay = (-(place[:, None] - place).abs().float()).exp()
    return (decay @ net(x)).square().mean()


def guided_attention(net: Critic, x: Tensor) -> Tensor:
    place = torch.arange(x.shape[1]) / x.shape[1]
    weights = (net(x) @ x.mT).softmax(-1)
    return (weights * (1 - (-(place[:, None] - place).square()).exp())).mean()


def monotonic(net: Critic, x: Tensor) -> Tensor:
    """Where each token looks, against where tokens stand: of one row as many values."""
    place = torch.arange(x.shape[1]).to(x)
    centre = net.of_tokens(x).exp().cumsum(1)
    return (centre - place).square().mul(0.01).mean()


def never_differentiated(net: Critic, x: Tensor) -> Tensor:
    with torch.no_grad():
        shown = (net.values(x) - rewards(x)).square().mean()
    return F.mse_loss(net.values(x).squeeze(-1), rewards(x)) + 0 * float(shown)


def shown_beside(net: Critic, x: Tensor) -> Tensor:
    """A number for the log, with a graph that nobody asks for."""
    assert (net.values(x) - rewards(x)).square().mean() >= 0
    return F.mse_loss(net.values(x).squeeze(-1), rewards(x))


def whitened(net: Critic, x: Tensor) -> Tensor:
    z = net(x).flatten(0, 1)
    z = z - z.mean(0)
    covariance = z.t() @ z / len(z)
    spread = covariance.diag()
    return (covariance - torch.eye(DIM)).square().mean() + (1 - spread).relu().mean()


def outer_target(net: Critic, x: Tensor) -> Tensor:
    one = net.values(x).squeeze(-1)
    return (torch.outer(one, one) - torch.outer(rewards(x), rewards(x))).square().mean()


def two_heads(net: Critic, x: Tensor) -> Tensor:
    """All of the answers' pairs are asked for by both sides' axes."""
    return (net.values(x) - net.second(x.mean(1)).view(1, -1)).square().mean()


def axial_table(net: Critic, x: Tensor) -> Tensor:
    """Two parameters make a table, whatever the batch."""
    table = net.second.weight.mT - net.second.weight[0].cos()
    return (net.values(x) * 0.1).square().mean() + table.square().mean()


HEALTHY = (equal_sizes, equal_tokens, ranking, ranking_of_one_column, ranking_of_its_copy, ranked_by_labels)
HEALTHY += (energy_distance, kernels, squared_distances, contrastive, quantiles, quantiles_broadcast)
HEALTHY += (one_target_for_many, against_a_row, chamfer, assigned, relative_positions, guided_attention, monotonic)
HEALTHY += (never_differentiated, shown_beside, whitened, outer_target, two_heads, axial_table)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss_of", HEALTHY)
def test_a_step_over_pairs_that_are_meant_passes(loss_of: Callable[[Any, Tensor], Tensor]) -> None:
    result = examined(Critic, train_step=step_of(loss_of))
    assert result.verdict is Verdict.PASS, result


class Rated(Critic):
    """A loss by a method."""

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        values = self.values(x)
        if self.kind == "flat":
            return (values - targets.reshape(len(x), -1).mean(1)).square().mean()  # here
        if self.kind == "flat by name":
            return F.mse_loss(values, targets.reshape(len(x), -1).mean(1))  # here
        if self.kind == "both flat":
            return F.mse_loss(values.squeeze(-1), targets.reshape(len(x), -1).mean(1))
        if self.kind == "labels":
            return F.cross_entropy(self(x).mT, targets)
        return F.mse_loss(values, targets)  # of the caller's shape


class OfAnswers(Critic):
    @staticmethod
    def compute_loss(preds: Tensor, targets: Tensor) -> Tensor:
        return (preds.flatten(1).mean(1, keepdim=True) - targets.flatten(1).mean(1)).abs().mean()  # here


@pytest.mark.parametrize("make", [lambda: Rated("flat"), lambda: Rated("flat by name")])
def test_a_method_that_takes_no_shape_rightly_is_found(make: Callable[[], nn.Module]) -> None:
    assert is_marked(examined(make))


@pytest.mark.parametrize("kind", ["both flat", "labels", "right"])
def test_a_method_that_takes_some_shape_rightly_passes(kind: str) -> None:
    result = examined(lambda: Rated(kind))
    assert result.verdict is Verdict.PASS, result


def test_without_a_loss_there_is_nothing_to_say() -> None:
    assert examined(lambda: nn.Linear(DIM, DIM)).verdict is Verdict.SKIP


def test_a_step_that_raises_is_not_judged() -> None:
    def step(_module: nn.Module, _optimizer: torch.optim.Optimizer, _x: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    result = examined(Critic, train_step=step)
    assert result.verdict is Verdict.SKIP
    assert "train_step raised" in result.reason


def test_a_loss_of_answers_is_found() -> None:
    subject = small_subject(OfAnswers, width=DIM, max_length=64, spec=("causal",))
    assert is_marked(run_check(registry.load("GRD230"), replace(subject, profile="full")))
