"""A forward that is given all tokens once more beside its cache decodes too: it leaves out those that it knows."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Again(nn.Module):
    """Causal attention whose cache [2, B, T, D] says how many of the tokens are known."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def kept(self, cache: Tensor | None, new: Tensor) -> Tensor:
        return new if cache is None else torch.cat((cache, new), 2)

    def attended(self, x: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        known = 0 if cache is None else cache.shape[2]
        new = torch.stack((self.k(x[:, known:]), self.v(x[:, known:])))
        k, v = new if cache is None else torch.cat((cache, new), 2)
        scores = self.q(x[:, known:]) @ k.transpose(1, 2) / DIM**0.5
        later = torch.ones_like(scores[0], dtype=torch.bool).triu(1 + k.shape[1] - scores.shape[1])
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v, self.kept(cache, new)

    def forward(
        self, x: Tensor, cache: Tensor | None = None, return_cache: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        y, cache = self.attended(x, cache)
        return (y, cache) if return_cache else y


class NewestAlone(Again):
    """Its cache holds the new tokens, without those that it held."""

    def kept(self, cache: Tensor | None, new: Tensor) -> Tensor:
        return new


class FromZero(Again):
    """Its positions begin at zero with a cache too."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(80, DIM))

    def attended(self, x: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        known = 0 if cache is None else cache.shape[2]
        new = x.shape[1] - known
        x = torch.cat((x[:, :known], x[:, known:] + self.places[:new]), 1)
        return super().attended(x, cache)


class WithThoseKnown(Again):
    """What was known is answered once more."""

    def __init__(self) -> None:
        super().__init__()
        self.after = nn.Linear(DIM, DIM)

    def forward(
        self, x: Tensor, cache: Tensor | None = None, return_cache: bool = False
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        y, held = self.attended(x, None if cache is None else cache[0])
        y = y if cache is None else torch.cat((cache[1], y), 1)
        return (self.after(y), (held, y)) if return_cache else self.after(y)


class Unread(Again):
    """Computes all of it again, whatever the cache holds."""

    def forward(
        self, x: Tensor, cache: Tensor | None = None, return_cache: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        y, cache = self.attended(x, None)
        return (y, cache) if return_cache else y


def found(make: type[nn.Module]) -> Subject:
    return adapt(SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,)), make)


@pytest.mark.parametrize("make", [Again, WithThoseKnown])
def test_a_forward_that_takes_all_tokens_again_decodes(make: type[nn.Module]) -> None:
    subject = found(make)
    assert any("with all tokens so far" in note for note in subject.notes)
    for code in ("DEC101", "DEC102"):
        assert run_check(registry.load(code), subject).findings == ()


def test_a_cache_that_forgets_what_it_held_is_found() -> None:
    (finding,) = run_check(registry.load("DEC101"), found(NewestAlone)).findings
    assert "68 of 70 tokens differ, first token 2" in finding.message


def test_positions_that_begin_again_are_found() -> None:
    subject = found(FromZero)
    assert any("with all tokens so far" in note for note in subject.notes)
    assert run_check(registry.load("DEC101"), subject).findings


def test_what_reads_no_cache_does_not_decode_by_it() -> None:
    assert not any("with all tokens so far" in note for note in found(Unread).notes)
