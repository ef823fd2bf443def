"""Losses that add up several cross-entropies: one that asks for what was read is found, and right ones are silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, VOCABULARY = 8, 12
Loss = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    """A language model of running sums, with a second head that also reads the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.mix, self.further = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.embed(ids).cumsum(1).tanh()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.hidden(ids))

    def second(self, ids: Tensor) -> Tensor:
        """Logits [B, S - 1, V] that know the token after theirs."""
        both = torch.cat((self.hidden(ids)[:, :-1], self.embed(ids[:, 1:])), -1)
        return self.further(self.mix(both).tanh())


def entropy(logits: Tensor, ids: Tensor, shift: int) -> Tensor:
    """Of logits [B, T, V] and the tokens so many places on."""
    kept = min(logits.shape[1], ids.shape[1] - shift)
    return cross_entropy(logits[:, :kept].flatten(0, 1), ids[:, shift : shift + kept].flatten())


def of_two(first: int, second: int) -> Loss:
    return lambda model, ids: entropy(model(ids), ids, first) + 0.3 * entropy(model.second(ids), ids, second)


def rolled(model: Model, ids: Tensor) -> Tensor:
    targets = ids.roll(-1, 1)
    return cross_entropy(model(ids).flatten(0, 1), targets.flatten()) + 0.3 * entropy(model.second(ids), ids, 2)


def rolled_alone(model: Model, ids: Tensor) -> Tensor:
    return cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())


def without_the_last(model: Model, ids: Tensor) -> Tensor:
    targets = ids.roll(-1, 1)
    targets[:, -1] = -100
    return cross_entropy(model(ids).flatten(0, 1), targets.flatten()) + 0.3 * entropy(model.second(ids), ids, 2)


def masked(model: Model, ids: Tensor) -> Tensor:
    """Asks for tokens that were hidden, beside the next ones."""
    hidden = ids.clone()
    hidden[:, ::4] = 0
    targets = torch.full_like(ids, -100)
    targets[:, ::4] = ids[:, ::4]
    return entropy(model(ids), ids, 1) + 0.3 * cross_entropy(model(hidden).mT, targets)


def examined(loss: Loss) -> Result:
    subject = small_subject(Model, width=VOCABULARY, input="tokens", loss=loss)
    return run_check(registry.load("GRD207"), subject)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (of_two(1, 1), "has the token at t+1 for its target, of logits that have read those up to t+1"),
        (of_two(0, 2), "has the token at t+0 for its target, of logits that have read those up to t+0"),
        (rolled, "and behind the last token comes the first"),
        (rolled_alone, "targets are rolled: behind the last token comes the first"),
    ],
    ids=["the second head", "the first head", "rolled", "rolled alone"],
)
def test_a_target_that_was_read_is_found(loss: Loss, words: str) -> None:
    (finding,) = examined(loss).findings
    assert words in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize("loss", [of_two(1, 2), of_two(1, 3), without_the_last, masked])
def test_targets_that_are_still_to_come_are_silent(loss: Loss) -> None:
    assert examined(loss).verdict is Verdict.PASS
