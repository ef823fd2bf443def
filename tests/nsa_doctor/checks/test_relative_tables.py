"""Tables of distances that are read by place, on one side alone or twice are found; every sort of distance is not."""

import linecache
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM, FAR = 8, 16
Index = Callable[[Tensor, Tensor], Tensor]  # of where queries [N, 1] and keys [1, N] stand
WAYS: dict[str, Callable[["Biased", Tensor], Tensor]] = {
    "called": lambda module, index: module.rel_bias(index)[..., 0],
    "indexed": lambda module, index: module.rel_bias.weight[index][..., 0],
    "flattened": lambda module, index: module.rel_bias.weight[index.flatten()].view(*index.shape, -1)[..., 0],
    "transposed": lambda module, index: module.rel_bias.weight.t()[:, index][0],
    "selected": lambda module, index: module.rel_bias.weight.index_select(0, index.flatten()).view(index.shape),
    "function": lambda module, index: F.embedding(index[None], module.rel_bias.weight)[0, ..., 0],
}


class Biased(nn.Module):
    """A mean weighted by a table named after relative positions."""

    def __init__(self, index: Index, rows: int = 80, way: str = "called") -> None:
        super().__init__()
        self.mix, self.index, self.way = nn.Linear(DIM, DIM), index, way
        self.rel_bias = nn.Embedding(rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        bias = WAYS[self.way](self, self.index(place[:, None], place[None]))
        return self.mix((bias + x.mean(-1)[:, None]).softmax(-1) @ x)


def added(query: Tensor, key: Tensor) -> Tensor:
    return (query + key).clamp(-FAR, FAR) + FAR  # here


def added_near(query: Tensor, key: Tensor) -> Tensor:
    return (query + key).clamp(max=6)  # here


def of_the_query(query: Tensor, key: Tensor) -> Tensor:
    return query + 0 * key  # here


def multiplied(query: Tensor, key: Tensor) -> Tensor:
    distance = query * key  # here
    return distance.clamp(max=FAR) + FAR


def buckets(first_ahead: int) -> Index:
    """Eight near distances and eight by their logarithm, on each side: T5's."""

    def of(query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        ahead = (distance < first_ahead).long() * 16  # here
        near = distance.abs()
        far = 8 + (near.clamp(min=1).float() / 8).log() / math.log(128 / 8) * 8
        return ahead + torch.where(near < 8, near, far.long().clamp(max=15))

    return of


def examined(make: Callable[[], nn.Module], length: int = 64, **more: Any) -> Result:
    return run_check(registry.load("FWD269"), small_subject(make, width=DIM, max_length=length, **more))


def line_of(result: Result) -> str:
    (finding,) = result.findings
    return linecache.getline(finding.where.file, finding.where.line).rstrip()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", [added, added_near, of_the_query, multiplied], ids=lambda each: each.__name__)
def test_a_table_that_is_read_by_place_is_found(index: Index, way: str) -> None:
    result = examined(lambda: Biased(index, way=way))
    assert "is read by where tokens stand and not by their distance" in result.findings[0].message
    assert line_of(result).endswith("# here")


@pytest.mark.parametrize(("first_ahead", "near"), [(-1, "distance 1"), (-3, "distances 1 to 3")])
def test_near_distances_that_share_rows_of_both_sides_are_found(first_ahead: int, near: str) -> None:
    result = examined(lambda: Biased(buckets(first_ahead)))
    assert f"has one row for both sides of a token at {near}, and" in result.findings[0].message
    assert line_of(result).endswith("# here")


class Windowed(nn.Module):
    """Attention in one window of h by w places, by an index that its constructor makes."""

    def __init__(self, height: int, width: int, kind: str = "", others: int = 0) -> None:
        super().__init__()
        self.mix, self.window_size, self.others = nn.Linear(DIM, DIM), (height, width), others
        rows = (2 * height - 1) * (2 * width - 1) + (3 if others else 0)
        self.relative_position_bias_table = nn.Parameter(torch.randn(rows, 1))
        coords = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        if kind != "unmoved":
            relative[:, :, 0] += height - 1
            relative[:, :, 1] += width - 1
        if kind == "other side":
            relative[:, :, 0] *= 2 * height - 1  # here
        elif kind == "either side alike":
            relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).abs()
            relative[:, :, 0] *= 2 * width - 1
        elif kind == "as in a row":
            relative[:, :, 0] *= width  # here
        elif kind != "unmultiplied":
            relative[:, :, 0] *= 2 * width - 1
        index = relative.sum(-1) % rows  # unmultiplied
        if others:
            index = F.pad(index, (others, 0, others, 0), value=rows - 1)
        self.register_buffer("relative_position_index", index)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = bias.view(*self.relative_position_index.shape)
        x = F.pad(x, (0, 0, self.others, 0))
        return self.mix((bias + x.mean(-1)[:, None]).softmax(-1) @ x)[:, self.others :]


class Continuous(Windowed):
    """A table that a network makes of offsets, indexed as before: Swin's second version."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        table = self.made(self.relative_position_bias_table).sigmoid()
        return self.mix((table[self.relative_position_index, 0] + x.mean(-1)[:, None]).softmax(-1) @ x)


@pytest.mark.parametrize("make", [Windowed, Continuous], ids=["table", "network"])
@pytest.mark.parametrize(
    ("kind", "marked"), [("other side", "# here"), ("as in a row", "# here"), ("unmultiplied", "# unmultiplied")]
)
def test_offsets_in_a_window_that_share_a_row_are_found(make: Any, kind: str, marked: str) -> None:
    result = examined(lambda: make(3, 5, kind), length=15)
    assert "one and the same is read for" in result.findings[0].message
    assert line_of(result).endswith(marked) or make is Continuous


@pytest.mark.parametrize("make", [Windowed, Continuous], ids=["table", "network"])
@pytest.mark.parametrize("sizes", [(3, 5), (4, 4), (2, 6), (6, 6)], ids=str)
@pytest.mark.parametrize("kind", ["", "unmoved", "either side alike"])
def test_windows_are_silent(make: Any, sizes: tuple[int, int], kind: str) -> None:
    assert examined(lambda: make(*sizes, kind), length=sizes[0] * sizes[1]).findings == ()


@pytest.mark.parametrize("others", [1, 4])
def test_tokens_beside_a_window_are_silent(others: int) -> None:
    assert examined(lambda: Windowed(4, 5, "", others), length=20).findings == ()
    assert len(examined(lambda: Windowed(4, 5, "unmultiplied", others), length=20).findings) == 1


def of_a_film(query: Tensor, key: Tensor) -> Tensor:
    """Of 3 planes of 3 by 4 places."""
    parts = ((query // 12 - key // 12 + 2) * 35, (query // 4 % 3 - key // 4 % 3 + 2) * 7, query % 4 - key % 4 + 3)
    return sum(parts, torch.zeros((), dtype=torch.long))


def shuffled(query: Tensor, key: Tensor) -> Tensor:
    """Tokens in another order, as where a curve that fills a plane numbers them."""
    order = torch.randperm(query.numel(), generator=torch.Generator().manual_seed(0))
    return (order[:, None] - order[None]).clamp(-FAR, FAR) + FAR


def with_a_global(query: Tensor, key: Tensor) -> Tensor:
    index = (query - key).clamp(-FAR, FAR) + FAR
    index[:2], index[:, :2] = 40, 41
    index[-1], index[:, -1] = 42, 43
    return index


def in_turns(query: Tensor, key: Tensor) -> Tensor:
    """Of frames, and of both codebooks of eight."""
    frames = (query // 8 - key // 8).clamp(-8, 8) + 8
    return (frames * 8 + query % 8) * 8 + key % 8


def of_levels(query: Tensor, key: Tensor) -> Tensor:
    """Four levels of resolution, with a row for each level of the query."""
    size = query.numel()

    def place(token: Tensor) -> Tensor:
        return token % (size // 4) * 2 ** (token * 4 // size)

    return query * 4 // size * 129 + (place(query) - place(key)).clamp(-64, 64) + 64


def with_registers(query: Tensor, key: Tensor) -> Tensor:
    """Sixteen registers, each with a row of its own."""
    index, own = (query - key).clamp(-8, 8) + 8, 20 + torch.arange(16)
    index[:16], index[:, :16] = own[:, None], own
    return index


def in_a_heap(query: Tensor, key: Tensor) -> Tensor:
    """How deep the nearest common ancestor of two lies."""
    index = torch.zeros(query.numel(), key.numel(), dtype=torch.long)
    for one in range(query.numel()):
        for other in range(key.numel()):
            above, beside = one + 1, other + 1
            while above != beside:
                above, beside = (above // 2, beside) if above > beside else (above, beside // 2)
            index[one, other] = above.bit_length()
    return index


def of_neighbours(query: Tensor, key: Tensor, far: int = 2) -> Tensor:
    """Itself, near, before and after."""
    distance = query - key
    return torch.where(distance == 0, 0, torch.where(distance.abs() <= far, 1, torch.where(distance > 0, 2, 3)))


HEALTHY: dict[str, Index] = {
    "codebooks in turns": in_turns,
    "variates in turns": lambda query, key: (query // 5 - key // 5).clamp(-6, 6) * 5 + 30 + query % 5,
    "to summaries of eight": lambda query, key: query - 8 * (key // 8) + 40,
    "to the end of a chunk": lambda query, key: (query // 12 + 1) * 12 - 1 - key + 40,
    "neighbours": of_neighbours,
    "next ones": lambda query, key: of_neighbours(query, key, 1),
    "in a heap": in_a_heap,
    "registers": with_registers,
    "clamped": lambda query, key: (query - key).clamp(-FAR, FAR) + FAR,
    "far less": lambda query, key: (query - key).clamp(-2, 2) + 2,
    "turned": lambda query, key: (key - query).clamp(-FAR, FAR) + FAR,
    "causal": lambda query, key: (query - key).clamp(0, FAR),
    "both sides alike": lambda query, key: (query - key).abs().clamp(max=FAR),
    "buckets": buckets(0),
    "buckets of a causal one": lambda query, key: buckets(-100)((query - key).clamp(min=0), torch.zeros_like(key)),
    "itself ahead": buckets(1),
    "wrapped": lambda query, key: (query - key) % 80,
    "on a ring": lambda query, key: (query - key) % query.numel(),
    "by pieces": lambda query, key: query // 4 - key // 4 + 20,
    "coarse": lambda query, key: ((query - key) / 4).round().long() + 20,
    "coarse and cut": lambda query, key: ((query - key) / 4).trunc().long() + 20,
    "from one document to the next": lambda query, key: (query % 13 - key % 13) + FAR,
    "within one document": lambda query, key: torch.where(query // 13 == key // 13, query - key + FAR, 70),
    "in another order": shuffled,
    "a global token": with_a_global,
    "in two parts": lambda query, key: torch.where(
        (query < 12) == (key < 12), query - key + 37, torch.where(query < 12, 75, 76)
    ),
    "by levels of a tree": lambda query, key: (query ^ key).double().add(1).log2().ceil().long(),
}


@pytest.mark.parametrize("way", ["called", "flattened"])
@pytest.mark.parametrize("index", HEALTHY.values(), ids=HEALTHY)
def test_distances_of_any_sort_are_silent(index: Index, way: str) -> None:
    result = examined(lambda: Biased(index, 2000, way))
    assert (result.findings, result.notes) == ((), ())


@pytest.mark.parametrize("name", ["relative_midpoint", "rel_len_bias"])
def test_tables_of_middles_and_of_lengths_are_silent(name: str) -> None:
    class Named(Biased):
        def __init__(self) -> None:
            super().__init__(added)
            setattr(self, name, self.rel_bias)
            del self.rel_bias

        def forward(self, x: Tensor) -> Tensor:
            place = torch.arange(x.shape[1])
            bias = getattr(self, name)(added(place[:, None], place))[..., 0]
            return self.mix((bias + x.mean(-1)[:, None]).softmax(-1) @ x)

    assert examined(Named).findings == ()


def test_levels_of_a_query_are_silent() -> None:
    assert examined(lambda: Biased(of_levels, 4 * 129)).findings == ()


class InALoop(Biased):
    """By place, in an index that loops fill."""

    def __init__(self, by: str) -> None:
        super().__init__(added)
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        index, place = torch.zeros(size, size, dtype=torch.long), torch.arange(size)
        for row in range(size):
            if self.by == "rows":
                index[row] = (place + row).clamp(max=2 * FAR)  # here: rows
            else:
                for column in range(size):
                    index[row, column] = min(row + column, 2 * FAR)  # here: items
        return self.mix((self.rel_bias(index)[..., 0] + x.mean(-1)[:, None]).softmax(-1) @ x)


@pytest.mark.parametrize("by", ["rows", "items"])
def test_an_index_that_a_loop_fills_by_place_is_found(by: str) -> None:
    assert line_of(examined(lambda: InALoop(by))).endswith(f"# here: {by}")


def test_the_line_is_that_of_the_read_where_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa_doctor.probes.attention.relative_faults._MOST_SECONDS_OF_LINE", -1)
    assert "self.rel_bias(index)" in line_of(examined(lambda: InALoop("rows")))


def test_tables_for_which_there_is_no_time_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa_doctor.probes.attention.relative_faults._MOST_SECONDS", -1)
    result = examined(lambda: Biased(added))
    assert result.findings == ()
    assert ["rel_bias.weight is not looked at" in each for each in result.notes] == [True]


class KeysInTurn(nn.Module):
    """Scores of keys, the newest one first or last, and of distances as if it were first."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        self.mix, self.rel_bias, self.is_turned = nn.Linear(DIM, DIM), nn.Embedding(2 * FAR + 1, 1), is_turned

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        keys = x.flip(1) if self.is_turned else x
        bias = self.rel_bias((place[:, None] - place.flip(0)).clamp(-FAR, FAR) + FAR)[..., 0]
        return self.mix((bias + x @ keys.mT).softmax(-1) @ keys)


@pytest.mark.parametrize("is_turned", [False, True])
def test_distances_to_keys_with_the_newest_first_are_silent(is_turned: bool) -> None:
    assert len(examined(lambda: KeysInTurn(is_turned)).findings) == (not is_turned)


def test_distances_in_a_film_are_silent() -> None:
    assert examined(lambda: Biased(of_a_film, 5 * 5 * 7), length=36).findings == ()


class Apart(nn.Module):
    """Tables that are none of distances, or whose rows follow from the input, or that are turned."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.mix, self.kind = nn.Linear(DIM, DIM), kind
        self.relative_bias, self.pair_bias = nn.Embedding(2000, 1), nn.Embedding(2000, 1)
        self.relation_emb = nn.Embedding(2000, 1)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        every = place[:, None] * len(place) + place
        if self.kind == "by pair":
            bias = self.pair_bias(every)
        elif self.kind == "relations":
            bias = self.relation_emb(every)
        elif self.kind == "input":
            rank = (x[0].mean(-1) * 7).long() % 30
            bias = self.relative_bias(rank[:, None] + rank)
        elif self.kind == "turned back":
            bias = self.relative_bias(place[:, None] + place).flip(0)
        else:  # a longer memory of keys
            offset = 9
            keys = torch.arange(len(place) + offset)
            bias = self.relative_bias((place[:, None] + offset - keys).clamp(min=0))[:, offset:]
        return self.mix(bias[..., 0].expand(len(x), -1, -1).softmax(-1) @ x)


@pytest.mark.parametrize("kind", ["by pair", "relations", "input", "turned back", "memory"])
def test_other_tables_are_silent(kind: str) -> None:
    assert examined(lambda: Apart(kind)).findings == ()


def test_layers_are_one_finding() -> None:
    (finding,) = examined(lambda: nn.Sequential(Biased(added), Biased(added), Biased(HEALTHY["clamped"]))).findings
    assert (finding.where.module, finding.where.module_class) == ("0", "Biased")
    assert finding.message.startswith("0.rel_bias.weight is read by")
