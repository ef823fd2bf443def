"""Losses that are given probabilities where they take scores or logarithms (GRD233)."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

GRD233 = registry.load("GRD233")
Loss = Callable[[Tensor, Tensor], Tensor]


class Classes(nn.Module):
    """Scores of six classes for each token, and what is made of them at the end."""

    def __init__(self, ending: nn.Module | None = None) -> None:
        super().__init__()
        self.hidden, self.head, self.ending = nn.Linear(8, 8), nn.Linear(8, 6), ending or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.ending(self.head(torch.relu(self.hidden(x))))


def labels(out: Tensor) -> Tensor:
    return torch.arange(out.shape[0] * out.shape[1]).view(out.shape[:2]) % 6


def entropy_of_shares(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(out.softmax(-1).flatten(0, 1), wanted.flatten())


def entropy_over_classes(out: Tensor, wanted: Tensor) -> Tensor:
    return nn.CrossEntropyLoss(label_smoothing=0.1)(out.softmax(-1).transpose(1, 2), wanted)


def entropy_of_own_shares(out: Tensor, wanted: Tensor) -> Tensor:
    shares = out.exp() / out.exp().sum(-1, keepdim=True)
    return functional.cross_entropy(shares.flatten(0, 1), wanted.flatten())


def smoothed_of_shares(out: Tensor, wanted: Tensor) -> Tensor:
    return -out.softmax(-1).log_softmax(-1).gather(-1, wanted[..., None]).mean()


def drawn_by_shares(out: Tensor, wanted: Tensor) -> Tensor:
    return -Categorical(logits=out.softmax(-1)).log_prob(wanted).mean()


def binary_of_sigmoids(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(torch.sigmoid(out), functional.one_hot(wanted, 6).to(out))


def likelihood_of_shares(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.nll_loss(out.softmax(-1).flatten(0, 1), wanted.flatten())


def likelihood_of_scores(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.nll_loss(out.flatten(0, 1), wanted.flatten())


def divergence_of_shares(out: Tensor, wanted: Tensor) -> Tensor:
    other = out.detach().roll(1, 0).softmax(-1)
    return functional.kl_div(out.softmax(-1), other, reduction="batchmean")


def divergence_of_channels(out: Tensor, wanted: Tensor) -> Tensor:
    shares = out.transpose(1, 2).softmax(1)
    return functional.kl_div(shares, shares.detach().roll(1, 0), reduction="batchmean")


def divergence_of_scores(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.kl_div(out, out.detach().softmax(-1), reduction="batchmean")


def entropy_of_sigmoids(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(out.sigmoid().flatten(0, 1), wanted.flatten())


def alignment_of_shares(out: Tensor, wanted: Tensor) -> Tensor:
    lengths = torch.full((len(out),), out.shape[1]), torch.full((len(out),), 2)
    return functional.ctc_loss(out.softmax(-1).transpose(0, 1), wanted[:, :2] + 1 - wanted[:, :2] // 5, *lengths)


def binary_of_joined_sigmoids(out: Tensor, wanted: Tensor) -> Tensor:
    both = torch.cat([out.sigmoid(), out.roll(1, 0).sigmoid()])
    return functional.binary_cross_entropy_with_logits(both, torch.zeros_like(both))


def masked_shares(out: Tensor, wanted: Tensor) -> Tensor:
    shares = out.softmax(-1) * (torch.arange(out.shape[1]) > 2)[:, None]
    return functional.cross_entropy(shares.flatten(0, 1), wanted.flatten())


def entropy(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(out.flatten(0, 1), wanted.flatten())


def entropy_of_logarithms(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(out.log_softmax(-1).flatten(0, 1), wanted.flatten())


def entropy_of_shared_targets(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(out.flatten(0, 1), out.detach().roll(1, 0).softmax(-1).flatten(0, 1))


def likelihood(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.nll_loss(out.log_softmax(-1).flatten(0, 1), wanted.flatten())


def divergence(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.kl_div(out.log_softmax(-1), out.detach().roll(1, 0).softmax(-1), reduction="batchmean")


def binary(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(out, functional.one_hot(wanted, 6).to(out))


def binary_of_probabilities(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.binary_cross_entropy(out.sigmoid(), functional.one_hot(wanted, 6).to(out))


def gated(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy((out * out.sigmoid()).flatten(0, 1), wanted.flatten())


def sharpened(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy((out.softmax(-1) / 0.05).flatten(0, 1), wanted.flatten())


def drawn(out: Tensor, wanted: Tensor) -> Tensor:
    return -Categorical(logits=out).log_prob(wanted).mean() - Categorical(probs=out.softmax(-1)).entropy().mean()


def confidence_beside(out: Tensor, wanted: Tensor) -> Tensor:
    with torch.no_grad():
        functional.nll_loss(out.softmax(-1).flatten(0, 1), wanted.flatten())
    return entropy(out, wanted)


def rewarded(out: Tensor, wanted: Tensor) -> Tensor:
    chosen = functional.nll_loss(out.softmax(-1).flatten(0, 1), wanted.flatten(), reduction="none")
    return (chosen * torch.linspace(-1, 1, len(chosen))).mean()


def with_its_normaliser(out: Tensor, wanted: Tensor) -> Tensor:
    chosen = functional.nll_loss(out.flatten(0, 1), wanted.flatten(), reduction="none")
    return (chosen + out.logsumexp(-1).flatten()).mean()


def soft_maximum(out: Tensor, wanted: Tensor) -> Tensor:
    return -out.softmax(-1).logsumexp(-1).mean()


class ForItsOwnScores(Classes):
    """It answers probabilities, and its loss is for scores."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(-1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())


class ScoresInTraining(Classes):
    """Scores in training, and probabilities in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores if self.training else scores.softmax(-1)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self(x).flatten(0, 1), targets.flatten().long())


def examined(of: Loss, make: Callable[[], nn.Module] = Classes, **seams: Any) -> Result:
    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        out = module(x)
        value = of(out, labels(out))
        value.backward()
        optimizer.step()
        return value.detach()

    return run_check(GRD233, small_subject(make, width=8, **(seams or {"train_step": step}), is_width_kept=False))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (entropy_of_shares, "cross_entropy in train_step is given probabilities, which add up to one: it takes the"),
        (entropy_over_classes, "cross_entropy in train_step is given probabilities, which add up to one: it takes"),
        (entropy_of_own_shares, "cross_entropy in train_step is given probabilities, which add up to one"),
        (smoothed_of_shares, "log_softmax in train_step is given the probabilities of a softmax"),
        (drawn_by_shares, "logsumexp in train_step is given the probabilities of a softmax"),
        (binary_of_sigmoids, "binary_cross_entropy_with_logits in train_step is given the probabilities of a sigmoid"),
        (likelihood_of_shares, "nll_loss in train_step is given probabilities, which add up to one: it takes their"),
        (likelihood_of_scores, "nll_loss in train_step is given scores as a layer gives them"),
        (divergence_of_channels, "kl_div in train_step is given probabilities, which add up to one"),
        (divergence_of_scores, "kl_div in train_step is given scores as a layer gives them"),
        (entropy_of_sigmoids, "cross_entropy in train_step is given what a sigmoid gives, between zero and one"),
        (alignment_of_shares, "ctc_loss in train_step is given probabilities, which add up to one"),
        (binary_of_joined_sigmoids, "binary_cross_entropy_with_logits in train_step is given the probabilities of a"),
        (masked_shares, "cross_entropy in train_step is given probabilities, which add up to one"),
        (divergence_of_shares, "kl_div in train_step is given probabilities, which add up to one: it takes their log"),
    ],
)
def test_probabilities_in_place_of_scores_or_logarithms_are_found(loss: Loss, said: str) -> None:
    (found,) = examined(loss).findings
    assert found.message.startswith(said)
    lines, first = inspect.getsourcelines(loss)
    assert first < found.where.line < first + len(lines)


def test_the_layer_at_the_end_of_a_model_is_named() -> None:
    (found,) = examined(entropy, lambda: Classes(nn.Softmax(dim=-1))).findings
    lines, first = inspect.getsourcelines(Classes.forward)
    assert found.where.line == first + len(lines) - 1
    assert "cross_entropy is called at test_loss_of_probabilities.py:" in found.message


def test_a_loss_that_is_no_step_is_examined_too() -> None:
    def loss(module: nn.Module, x: Tensor) -> Tensor:
        out = module(x)
        return entropy_of_shares(out, labels(out))

    (found,) = examined(entropy, loss=loss).findings
    assert " in loss is given " in found.message


@pytest.mark.parametrize(
    "loss",
    [
        *(entropy, entropy_of_logarithms, entropy_of_shared_targets, likelihood, divergence, binary),
        *(binary_of_probabilities, gated, sharpened, drawn),
        *(confidence_beside, rewarded, with_its_normaliser, soft_maximum),
    ],
)
def test_what_is_given_as_it_is_taken_is_silent(loss: Loss) -> None:
    result = examined(loss)
    assert not result.findings
    assert result.verdict is Verdict.PASS


def test_a_loss_by_a_method_is_examined_too() -> None:
    class Trained(Classes):
        def compute_loss(self, x: Tensor, targets: Tensor) -> Tensor:
            return functional.cross_entropy(self(x).softmax(-1).flatten(0, 1), targets.flatten().long())

    result = run_check(GRD233, small_subject(Trained, width=8, is_width_kept=False))
    (found,) = result.findings
    assert found.message.startswith("cross_entropy in compute_loss(targets) is given probabilities")


@pytest.mark.parametrize("make", [ForItsOwnScores, ScoresInTraining])
def test_losses_that_are_made_for_something_else_are_silent(make: Callable[[], nn.Module]) -> None:
    assert not run_check(GRD233, small_subject(make, width=8, is_width_kept=False)).findings


def test_a_step_without_values_is_looked_at_no_further() -> None:
    def of_meta(out: Tensor, wanted: Tensor) -> Tensor:
        functional.cross_entropy(out.flatten(0, 1).to("meta"), wanted.flatten().to("meta"))
        return entropy(out, wanted)

    assert examined(of_meta).verdict is Verdict.PASS


def test_a_step_for_one_row_alone_is_examined() -> None:
    def of_one(out: Tensor, wanted: Tensor) -> Tensor:
        if len(out) != 1:
            raise ValueError("one row at a time")
        return entropy_of_shares(out, wanted)

    assert len(examined(of_one).findings) == 1


def test_a_step_that_always_raises_is_not_examined() -> None:
    def raises(out: Tensor, wanted: Tensor) -> Tensor:
        raise ValueError("never")

    result = examined(raises)
    assert (result.verdict, result.is_required) == (Verdict.SKIP, True)
    assert "train_step raised for 1, 5 and 8 rows" in result.reason


def test_where_there_is_no_loss_nothing_is_asked_for() -> None:
    result = run_check(GRD233, small_subject(Classes, width=8))
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
