"""A forward that takes where packed sequences start, or which each token is of, has to keep them apart."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Layer(nn.Module):
    """Causal attention; `apart` says of (documents of queries, of keys) which see each other."""

    def __init__(self, apart: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv, self.apart = nn.Linear(DIM, 3 * DIM), apart

    def attend(self, x: Tensor, numbers: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = self.apart(numbers[:, :, None], numbers[:, None, :])
        seen = seen & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return (q @ k.mT).masked_fill(~seen, torch.finfo(x.dtype).min).softmax(-1) @ v


class ByNumbers(Layer):
    def forward(self, x: Tensor, document_ids: Tensor | None = None) -> Tensor:
        nothing = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        return self.attend(x, nothing if document_ids is None else document_ids.expand(x.shape[:2]))


class ByStarts(Layer):
    """Whose positions begin again where they are given so."""

    def __init__(self, apart: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(apart)
        self.places = nn.Embedding(200, DIM)

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Tensor:
        tokens = torch.arange(x.shape[1], device=x.device)
        numbers = torch.zeros_like(tokens)
        if cu_seqlens is not None:
            assert max_seqlen == int(cu_seqlens.diff().max())
            numbers = torch.searchsorted(cu_seqlens[1:].long(), tokens, right=True)
        return self.attend(x + self.places(tokens if position_ids is None else position_ids), numbers[None])


def result(make: Callable[[], nn.Module], max_length: int = 0) -> Result:
    def factory() -> nn.Module:
        torch.manual_seed(0)
        return make()

    subject = adapt(SubjectRequest(spec="tests:make", input="embeddings", width=DIM, explore=True), factory)
    assert subject.offers("packed")
    return run_check(registry.load("FWD306"), replace(subject, max_length=max_length or subject.max_length))


@pytest.mark.parametrize("max_length", [1, 2, 3, 8])
def test_short_sequences_are_packed_where_no_longer_ones_are_served(max_length: int) -> None:
    found = result(lambda: ByNumbers(lambda q, k: q >= k), max_length)
    assert found.verdict is (Verdict.FAIL if max_length > 1 else Verdict.PASS), found.reason


@pytest.mark.parametrize("kind", [ByNumbers, ByStarts])
def test_sequences_that_are_kept_apart_are_silent(kind: type) -> None:
    assert result(lambda: kind(lambda q, k: q == k)).findings == ()


@pytest.mark.parametrize("kind", [ByNumbers, ByStarts])
def test_sequences_that_see_earlier_ones_are_found(kind: type) -> None:
    (finding,) = result(lambda: kind(lambda q, k: q >= k)).findings
    assert "packed, differs" in finding.message


def test_a_row_that_is_no_longer_itself_is_no_packed_one() -> None:
    class Typed(nn.Module):
        """Whose numbers are kinds of tokens, with an embedding each."""

        def __init__(self) -> None:
            super().__init__()
            self.kinds, self.mix = nn.Embedding(200, DIM), nn.Linear(DIM, DIM)

        def forward(self, x: Tensor, sequence_ids: Tensor | None = None) -> Tensor:
            return self.mix(x if sequence_ids is None else x + self.kinds(sequence_ids))

    subject = adapt(SubjectRequest(spec="tests:make", input="embeddings", width=DIM, explore=True), Typed)
    assert not subject.offers("packed")


class ByPositions(Layer):
    """Takes a new sequence to begin where `begins` says so of positions and the ones before."""

    def __init__(self, begins: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(lambda q, k: q == k)
        self.begins = begins

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        numbers = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        if position_ids is not None:
            numbers[:, 1:] = self.begins(position_ids[:, 1:], position_ids[:, :-1]).long()
        return self.attend(x, numbers.cumsum(1))


def test_positions_that_begin_again_separate_sequences() -> None:
    assert result(lambda: ByPositions(lambda here, before: here != before + 1)).findings == ()
    (finding,) = result(lambda: ByPositions(lambda here, before: here < before)).findings  # of one token: 0, 0
    assert "sequence 2 of 5, packed, differs" in finding.message
    assert finding.where.function == "forward"  # which numbers the sequences


def test_positions_that_turn_keys_alone_separate_nothing() -> None:
    subject = adapt(
        SubjectRequest(spec="tests:make", input="embeddings", width=DIM, explore=True),
        lambda: ByPositions(lambda here, before: torch.zeros_like(here)),
    )
    assert not subject.offers("packed")


class ByRows(Layer):
    """Lays all rows behind one another; `begins` marks where a row begins in the numbers [B, S] of its sequences."""

    def __init__(self, begins: Callable[[Tensor], None], takes: int = 9) -> None:
        super().__init__(lambda q, k: q == k)
        self.begins, self.takes = begins, takes

    def forward(self, x: Tensor, document_ids: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        if document_ids is None:
            starts = torch.tensor([0, x.shape[1]]) if cu_seqlens is None else cu_seqlens
            numbers = torch.searchsorted(starts[1:].long(), torch.arange(x.shape[1]), right=True)
            return self.attend(x, numbers.expand(x.shape[:2]))
        if len(x) > self.takes:
            raise ValueError("several rows")
        begins = torch.zeros_like(document_ids)
        begins[:, 1:] = (document_ids[:, 1:] != document_ids[:, :-1]).long()  # reads
        self.begins(begins)
        numbers = begins.flatten().cumsum(0)
        return self.attend(x.flatten(0, 1)[None], numbers[None]).view_as(x)


def every_row(begins: Tensor) -> None:
    begins[:, 0] = 1


def the_first_row(begins: Tensor) -> None:
    begins[0, 0] = 1


def test_rows_that_are_kept_apart_or_refused_are_silent() -> None:
    assert result(lambda: ByRows(every_row)).findings == ()
    assert result(lambda: ByRows(the_first_row, takes=1)).findings == ()


def test_rows_that_go_on_with_the_row_before_are_found() -> None:
    (finding,) = result(lambda: ByRows(the_first_row)).findings
    assert "sequence 0 of row 1, one of 3 rows of packed sequences, differs" in finding.message
    assert finding.where.file == __file__


def test_rows_of_a_module_that_knows_sequences_by_their_positions_are_compared() -> None:
    def joined(here: Tensor, before: Tensor) -> Tensor:
        return (here != before + 1) & (here.shape[0] == 1)

    (finding,) = result(lambda: ByPositions(joined)).findings
    assert "of row 1, one of 3 rows" in finding.message
