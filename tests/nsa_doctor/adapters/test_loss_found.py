"""A token model's own loss is found by the labels that its forward takes, shifted inside or by whoever calls it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

VOCABULARY, DIM = 32, 8
Loss = Callable[[Tensor, Tensor], Tensor]


def next_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def as_they_stand(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), ids.flatten())


def tokens_before(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits[:, 1:].flatten(0, 1), ids[:, :-1].flatten())


def without_minus(logits: Tensor, ids: Tensor) -> Tensor:
    return -next_tokens(logits, ids)


def smoothed(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), ids.flatten(), label_smoothing=0.1)


class Model(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, DIM), nn.Linear(DIM, VOCABULARY)
        self.of = loss


class WithLabels(Model):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor | None]:
        logits = self.head(self.embed(input_ids).cumsum(1))
        return {"logits": logits, "loss": None if labels is None else self.of(logits, labels)}


class WithTargets(Model):
    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.embed(ids).cumsum(1))
        return logits, None if targets is None else self.of(logits, targets)


class Refuses(Model):
    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is not None:
            raise NotImplementedError("labels are for the trainer")
        return self.head(self.embed(ids).cumsum(1))


def found(kind: type[Model], loss: Loss) -> Subject:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind(loss)

    return adapt(SubjectRequest(spec="x:y", input="tokens", width=VOCABULARY, lengths=(16,)), make)


@pytest.mark.parametrize(
    ("kind", "loss", "words"),
    [
        (WithLabels, next_tokens, "forward(ids, labels=ids)"),
        (WithLabels, as_they_stand, "forward(ids, labels=ids shifted by one)"),
        (WithTargets, as_they_stand, "forward(ids, targets=ids shifted by one)"),
        (WithTargets, smoothed, "forward(ids, targets=ids shifted by one)"),
        (WithTargets, next_tokens, "forward(ids, targets=ids)"),
    ],
)
def test_a_right_loss_is_found_and_passes(kind: type[Model], loss: Loss, words: str) -> None:
    subject = found(kind, loss)
    assert any(words in note for note in subject.notes)
    assert run_check(registry.load("GRD207"), subject).verdict is Verdict.PASS


class ByMethod(Model):
    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).cumsum(1))

    def loss(self, ids: Tensor) -> tuple[Tensor, dict[str, float]]:
        loss = self.of(self(ids), ids)
        return loss, {"ppl": float(loss.exp())}


class ByMethodOfTargets(ByMethod):
    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        return self.of(self(ids), targets)


class ByChance(ByMethod):
    def loss(self, ids: Tensor) -> Tensor:
        hidden = torch.where(torch.rand(ids.shape) < 0.3, 0, ids)
        return self.of(self(hidden), ids)


@pytest.mark.parametrize(
    ("kind", "loss", "words"),
    [
        (ByMethod, next_tokens, "loss(ids),"),
        (ByMethodOfTargets, next_tokens, "loss(ids, targets=ids),"),
        (ByMethodOfTargets, as_they_stand, "loss(ids, targets=ids shifted by one),"),
    ],
)
def test_a_loss_by_a_method_is_found(kind: type[Model], loss: Loss, words: str) -> None:
    subject = found(kind, loss)
    assert any(words in note for note in subject.notes), subject.notes
    assert run_check(registry.load("GRD207"), subject).verdict is Verdict.PASS


def test_a_loss_that_draws_is_none_of_next_tokens() -> None:
    assert not found(ByChance, next_tokens).offers("loss")


@pytest.mark.parametrize("kind", [WithLabels, WithTargets, ByMethod, ByMethodOfTargets])
@pytest.mark.parametrize(
    ("loss", "words"), [(tokens_before, "shifted the wrong way"), (without_minus, "without a minus")]
)
def test_a_wrong_loss_is_found(kind: type[Model], loss: Loss, words: str) -> None:
    (finding,) = run_check(registry.load("GRD207"), found(kind, loss)).findings
    assert words in finding.message
    assert finding.where.file == __file__


def test_a_model_that_takes_no_labels_has_no_loss() -> None:
    assert not found(Refuses, next_tokens).offers("loss")


class LossAlone(Model):
    def forward(self, ids: Tensor, lm_labels: Tensor | None = None) -> Tensor:
        logits = self.head(nn.functional.dropout(self.embed(ids).cumsum(1), 0.1, self.training))
        return logits if lm_labels is None else self.of(logits, lm_labels)


def step_on_labels(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    optimizer.zero_grad()
    loss = module(ids, lm_labels=ids)
    loss.backward()
    optimizer.step()
    return float(loss)


@pytest.mark.parametrize(("loss", "num_findings"), [(next_tokens, 0), (as_they_stand, 1)])
def test_a_forward_that_gives_the_loss_alone_is_asked_for_its_logits(loss: Loss, num_findings: int) -> None:
    subject = replace(found(LossAlone, loss), loss=None, train_step=step_on_labels)
    result = run_check(registry.load("GRD207"), subject)
    assert len(result.findings) == num_findings
    for finding in result.findings:
        assert finding.message.startswith("targets are the tokens just read")
        assert finding.where.function == "as_they_stand"


class OfItsOwn(Model):
    """Its loss is taken of logits that are computed again, in `eval()` too of a running scale where it `counts`."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        hidden = self.embed(ids).cumsum(1)
        return self.head(hidden), None if targets is None else self.of(self.head(hidden), targets)


class CountsInEval(OfItsOwn):
    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits, loss = super().forward(ids, targets)
        if loss is not None:
            self.seen += targets.numel()
            loss = loss * (1 + 1 / self.seen)
        return logits, loss


class DrawsByItself(OfItsOwn):
    """Weights tokens by a generator of its own, which no seed of the caller's reaches."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits, loss = super().forward(ids, targets)
        return logits, None if loss is None else loss * (1 + torch.rand((), generator=self.generator))


@pytest.mark.parametrize(
    ("loss", "words"),
    [(next_tokens, "forward(ids, targets=ids)"), (as_they_stand, "forward(ids, targets=ids shifted by one)")],
)
def test_a_loss_of_other_logits_than_it_returns_is_found_to_shift_or_not(loss: Loss, words: str) -> None:
    assert any(words in note for note in found(OfItsOwn, loss).notes)


def test_a_loss_that_evaluation_changes_is_found_at_the_line_that_counts() -> None:
    (finding,) = run_check(registry.load("FWD210"), found(CountsInEval, next_tokens)).findings
    assert "when it is taken again: each call writes into the buffer seen" in finding.message
    assert "self.seen +=" in finding.where.line_text or finding.where.function == "forward"
    for silent in (OfItsOwn, DrawsByItself):
        assert run_check(registry.load("FWD210"), found(silent, next_tokens)).findings == ()
