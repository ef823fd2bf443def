"""A mask that stands in the place of the causal one is given whole: of padding and of later tokens."""

import math

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Attends(nn.Module):
    """One layer, whose mask is the causal one where none is given."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def seen(self, x: Tensor, mask: Tensor | None) -> Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return causal[None, None] if mask is None else mask

    def mixed(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        scores = (q @ k.mT / math.sqrt(DIM)).masked_fill(~seen, -torch.inf)
        return x + (scores.softmax(-1) @ v)[:, 0]

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return self.mixed(x, self.seen(x, attn_mask))


class Twice(Attends):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        seen = self.seen(x, attn_mask)
        return self.mixed(self.mixed(x, seen), seen)


class CausalBesides(Attends):
    """A mask of padding beside the causal one."""

    def seen(self, x: Tensor, mask: Tensor | None) -> Tensor:
        causal = super().seen(x, None)
        return causal if mask is None else causal & mask.view(len(x), 1, 1, -1)


class Averages(Attends):
    """Beside attention a mean of all tokens so far, of which padding is a part."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        counts = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return super().forward(x, attn_mask) + x.cumsum(1) / counts


def subject_of(kind: type[nn.Module]) -> Subject:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind()

    return adapt(SubjectRequest(spec="tests:module", input="embeddings", width=DIM, lengths=(16,)), make)


def examined(subject: Subject) -> Result:
    return run_check(registry.load("FWD226"), subject)


@pytest.mark.parametrize("kind", [Attends, Twice])
def test_nothing_is_found_where_a_whole_mask_takes_the_place_of_the_causal_one(kind: type[nn.Module]) -> None:
    subject = subject_of(kind)
    assert "[B, 1, S, S] in place of the causal one" in subject.notes[-1]
    result = examined(subject)
    assert result.verdict is Verdict.PASS, result.findings


def test_a_mask_of_padding_beside_the_causal_one_is_given_as_it_is() -> None:
    subject = subject_of(CausalBesides)
    assert subject.notes[-1].endswith("true for tokens")


def test_padding_that_is_read_beside_a_whole_mask_is_found() -> None:
    (finding,) = examined(subject_of(Averages)).findings
    assert "padding is read" in finding.message
