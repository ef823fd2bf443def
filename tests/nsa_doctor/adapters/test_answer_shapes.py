"""Modules whose answer is no [B, S, D] are examined: pooled ones, scores of tokens, heads that are not merged."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

WIDTH = 8


class Pooled(nn.Module):
    """The mean of what tokens are mapped to; `shape` is what follows the rows."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.map, self.shape = nn.Linear(WIDTH, torch.Size(shape).numel()), shape

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x).mean(1).unflatten(1, self.shape) if self.shape else self.map(x).mean((1, 2))


class MixesRows(Pooled):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class HasNoUse(Pooled):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.spare = nn.Parameter(torch.ones(2))


class OfTokens(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.map, self.shape = nn.Linear(WIDTH, torch.Size(shape).numel()), shape

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.map(x).reshape(*x.shape[:2], *self.shape)}


class Longer(nn.Module):
    """One token too many: a fault, whatever follows it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x[:, :1]], dim=1)


def subject_of(module: nn.Module, *, explore: bool = True) -> Subject:
    request = SubjectRequest(spec="tests:module", input="embeddings", width=WIDTH, explore=explore)
    return adapt(request, lambda: module)


@pytest.mark.parametrize("shape", [(), (5,), (8,), (2, 3)], ids=str)
def test_an_answer_for_each_row_is_given_to_its_tokens(shape):
    module = Pooled(*shape)
    subject = subject_of(module)
    x = torch.randn(3, 4, WIDTH)
    answer = subject.forward(module, x)
    assert torch.equal(answer, module(x).reshape(3, 1, -1).expand(3, 4, -1))
    assert subject.spec == ("bidirectional",)
    assert str(["B", *shape]).replace("'", "") in subject.notes[-1]
    assert run_check(registry.load("FWD201"), subject).verdict is not Verdict.FAIL


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_further_axes_of_tokens_are_one(shape):
    module = OfTokens(*shape)
    subject = subject_of(module)
    x = torch.randn(3, 4, WIDTH)
    assert torch.equal(subject.forward(module, x), module.map(x))
    assert subject.spec == ()


@pytest.mark.parametrize(
    "module", [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3), Longer()], ids=lambda each: str(each)[:9]
)
def test_other_answers_are_left_as_they_are(module):
    subject = subject_of(module)
    x = torch.randn(3, 4, WIDTH)
    assert torch.equal(subject.forward(module, x), module(x))
    assert subject.spec == ()
    assert not any(note.startswith("its answer is") for note in subject.notes)


@pytest.mark.parametrize(("code", "faulty"), [("FWD203", MixesRows(5)), ("GRD208", HasNoUse(5))])
def test_faults_of_pooled_answers_are_found(code, faulty):
    check = registry.load(code)
    assert run_check(check, subject_of(faulty)).verdict is Verdict.FAIL
    assert run_check(check, subject_of(Pooled(5))).verdict is Verdict.PASS


ODD = [Pooled(5), OfTokens(2, 3), nn.Linear(WIDTH, 3), Longer()]


@pytest.mark.parametrize("module", ODD, ids=lambda each: str(each)[:9])
def test_a_single_call_is_answered_alike_where_nothing_was_tried_before(module):
    x = torch.randn(3, 4, WIDTH)
    first, second = (subject_of(module, explore=tried).forward(module, x) for tried in (True, False))
    assert torch.equal(first, second)


def test_asking_for_the_shape_leaves_modes_and_random_numbers_alone():
    module = nn.Sequential(nn.Dropout(0.5), Pooled(5)).train()
    module[1].eval()
    subject, x = subject_of(module, explore=False), torch.randn(3, 4, WIDTH)
    torch.manual_seed(0)
    due = module(x), torch.rand(2)
    torch.manual_seed(0)
    found = subject.forward(module, x)[:, 0], torch.rand(2)
    assert all(map(torch.equal, due, found))
    assert [part.training for part in module.modules()] == [True, True, False, False]


class OfFields(nn.Module):
    """A score for three ids of ten each, which one table holds behind one another; a norm by the batch on request."""

    def __init__(self, *, normed: bool = False) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(30, WIDTH), nn.BatchNorm1d(WIDTH) if normed else nn.Identity()

    def forward(self, ids: Tensor) -> Tensor:
        fields = nn.functional.pad(ids, (3, 0))[:, -3:] + torch.tensor([0, 10, 20])
        return self.norm(self.table(fields).sum(1))


def test_ids_of_a_part_of_a_table_are_found_where_the_answer_is_for_rows():
    request = SubjectRequest(spec="tests:fields", input="tokens", explore=True, lengths=(64, 16))
    subject = adapt(request, OfFields)
    assert subject.width == 10
    assert subject.answer == ("", (WIDTH,))


def test_an_answer_for_each_row_that_a_norm_by_the_batch_makes_is_asked_for_two_rows():
    request = SubjectRequest(spec="tests:fields", input="tokens", explore=True, lengths=(64, 16))
    subject = adapt(request, lambda: OfFields(normed=True))
    assert run_check(registry.load("GRD201"), subject).verdict is Verdict.PASS
