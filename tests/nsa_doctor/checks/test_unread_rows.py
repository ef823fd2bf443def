"""Rows of a table of distances that no length reads are found; tables that are long, one-sided or of words are not."""

import linecache
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM, SIZE = 8, 8
Index = Callable[[Tensor, Tensor], Tensor]  # of where a key and a query stand


class Biased(nn.Module):
    """Attention by a bias alone, which a table gives for each pair; causal where that is asked for."""

    def __init__(self, rows: int, index: Index, *, is_causal: bool = False, looks_up: bool = False) -> None:
        super().__init__()
        self.mix, self.index, self.is_causal, self.looks_up = nn.Linear(DIM, DIM), index, is_causal, looks_up
        self.table = nn.Embedding(rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        index = self.index(place, place[:, None]).expand(len(place), len(place))
        bias = self.table(index) if self.looks_up else self.table.weight[index]  # here
        scores = bias[..., 0] + x.mean(-1)[:, None]
        hidden = place > place[:, None] + (0 if self.is_causal else len(place))
        return self.mix(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ x)


class Embeds(nn.Module):
    def __init__(self, rows: int, num_read: int) -> None:
        super().__init__()
        self.words, self.places, self.num_read = nn.Embedding(64, DIM), nn.Embedding(rows, DIM), num_read

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.places(torch.arange(ids.shape[1]) % self.num_read)


def signed(key: Tensor, query: Tensor) -> Tensor:
    return (key - query).clamp(1 - SIZE, SIZE - 1) + SIZE - 1


def folded(key: Tensor, query: Tensor) -> Tensor:
    return (key - query).abs().clamp(max=SIZE - 1)


def doubled(key: Tensor, query: Tensor) -> Tensor:
    return 2 * (query - key).clamp(0, SIZE - 1)


def buckets(farthest: int, is_log: bool = True) -> Index:
    """Sixteen rows for each sign: eight for near distances, and eight for others by their logarithm."""

    def of(key: Tensor, query: Tensor) -> Tensor:
        distance = key - query
        far = distance.abs().clamp(min=1).double() / 8
        grown = 8 + (far.log() if is_log else far) / math.log(farthest / 8) * 8
        near = torch.where(distance.abs() < 8, distance.abs(), grown.long().clamp(max=15))
        return near + 16 * (distance > 0)

    return of


def examined(make: Callable[[], nn.Module], **more: object) -> Result:
    return run_check(registry.load("FWD266"), small_subject(make, width=DIM, max_length=600, **more))


@pytest.mark.parametrize("looks_up", [True, False])
@pytest.mark.parametrize(
    ("rows", "index", "words"),
    [
        (2 * SIZE - 1, folded, "7 of the 15 rows of table.weight are never read, all on one side"),
        (2 * SIZE, doubled, "8 of the 16 rows of table.weight are never read, "),
        (
            32,
            buckets(64, is_log=False),
            "7 of the 32 rows of table.weight are never read, 6 of them between rows that are",
        ),
    ],
    ids=["folded", "doubled", "no logarithm"],
)
def test_rows_that_are_left_out_are_found(rows: int, index: Index, words: str, looks_up: bool) -> None:
    (finding,) = examined(lambda: Biased(rows, index, looks_up=looks_up)).findings
    assert words in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith("# here")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Biased(2 * SIZE - 1, signed),
        lambda: Biased(2 * SIZE - 1, folded, is_causal=True),
        lambda: Biased(2 * SIZE - 1, lambda key, query: signed(key, query).clamp(max=SIZE - 1), is_causal=True),
        lambda: Biased(32, buckets(64)),
        lambda: Biased(32, buckets(100_000)),
        lambda: Biased(4 * SIZE - 3, lambda key, query: signed(key, query) + SIZE - 1),
    ],
    ids=["signed", "causal", "one-sided", "buckets", "far buckets", "wider table"],
)
def test_tables_that_are_read_as_they_are_meant_to_be_are_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).findings == ()


class Fixed(nn.Module):
    """The same rows at every length: kept heads of a pruned weight, a fixed prompt; or a window of a plane's table."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.mix, self.kind = nn.Linear(DIM, DIM), kind
        self.table = nn.Parameter(torch.randn(169 if kind == "plane" else 64, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "kept":
            return self.mix(x) * self.table[torch.tensor([1, 5, 9, 40])].mean()
        place = torch.arange(x.shape[1], device=x.device) % 16
        down, right = (each[:, None] - each for each in (place // 4, place % 4))
        bias = self.table[(down + 6) * 13 + right + 6][..., 0]
        return self.mix((bias + x.mean(-1)[:, None]).softmax(-1) @ x)


@pytest.mark.parametrize("kind", ["kept", "plane"])
def test_rows_that_are_no_ones_of_distances_along_a_row_are_silent(kind: str) -> None:
    assert examined(lambda: Fixed(kind)).findings == ()


@pytest.mark.parametrize(("rows", "num_read"), [(2048, 2048), (64, 16)], ids=["longer", "by turns"])
def test_tables_of_words_and_places_are_silent(rows: int, num_read: int) -> None:
    assert examined(lambda: Embeds(rows, num_read), input="tokens").findings == ()
