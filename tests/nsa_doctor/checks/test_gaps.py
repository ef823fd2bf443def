"""A block that tokens skip between near and far is found, as halves that never meet are; sparse attention is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8
Seen = Callable[[Tensor, Tensor, int], Tensor]


class Attends(nn.Linear):
    """Attention over what `seen(query, key, length)` shows of positions, or over the keys of the largest scores."""

    def __init__(self, seen: Seen, most: int = 0) -> None:
        super().__init__(WIDTH, WIDTH)
        self.seen, self.most = seen, most

    def forward(self, x: Tensor) -> Tensor:
        q, at = super().forward(x), torch.arange(x.shape[1], device=x.device)
        scores = (q @ x.mT).masked_fill(~self.seen(at[:, None], at[None], x.shape[1]), -1e30)
        if self.most:
            least = scores.topk(min(self.most, x.shape[1]), dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < least, -1e30)
        return x + scores.softmax(-1) @ x


def block_of(t: Tensor, size: int = 8) -> Tensor:
    return t.div(size, rounding_mode="floor")


def everything(i: Tensor, j: Tensor, length: int) -> Tensor:
    return (i - j) == (i - j)


FAULTY: dict[str, tuple[Seen, str]] = {
    "the block before, causal": (lambda i, j, n: (j <= i) & (block_of(i) - block_of(j) != 1), "skip 8 between at S=64"),
    "the other of two": (
        lambda i, j, n: (block_of(i) == block_of(j)) | (block_of(i, 16) != block_of(j, 16)),
        "skip 8 between at S=64",
    ),
    "the other half": (lambda i, j, n: (i < n // 2) == (j < n // 2), "before 32 and from it on never read each other"),
}
HEALTHY: dict[str, tuple[Seen, int]] = {
    "everything": (everything, 0),
    "causal": (lambda i, j, n: j <= i, 0),
    "blocks": (lambda i, j, n: block_of(i, 16) == block_of(j, 16), 0),
    "blocks of half": (lambda i, j, n: block_of(i, 32) == block_of(j, 32), 0),
    "blocks from the end": (lambda i, j, n: block_of(n - 1 - i, 24) == block_of(n - 1 - j, 24), 0),
    "window": (lambda i, j, n: (i - j).abs() < 9, 0),
    "window and sinks": (lambda i, j, n: (j <= i) & ((i - j < 9) | (j < 4)), 0),
    "window and global tokens": (lambda i, j, n: ((i - j).abs() < 9) | (j < 4) | (i < 4), 0),
    "strided": (lambda i, j, n: (j <= i) & ((i - j < 8) | (j % 8 == 7)), 0),
    "dilated": (lambda i, j, n: (j <= i) & ((i - j) % 3 == 0), 0),
    "block-sparse": (lambda i, j, n: (block_of(i) * 5 + block_of(j) * 3) % 4 < 2, 0),
    "no block of its own": (lambda i, j, n: (block_of(j) < block_of(i)) | (i == j), 0),
    "the largest scores": (lambda i, j, n: j <= i, 6),
    "the largest scores of all": (everything, 12),
}


def examined(seen: Seen, most: int = 0) -> Result:
    return result_of(lambda: Attends(seen, most))


@pytest.mark.parametrize("name", FAULTY)
def test_a_gap_is_found(name: str) -> None:
    seen, said = FAULTY[name]
    (finding,) = examined(seen).findings
    assert said in finding.message
    assert finding.where.file == __file__


class Projected(nn.Module):
    """Queries, keys and values, and what `mixes` makes of them."""

    def __init__(self, mixes: Callable[..., Tensor]) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mixes = mixes

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixes(self.to_q(x), self.to_k(x), self.to_v(x))


class Memory(nn.Module):
    """Keys and values that are learned: each token reads them alone, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(WIDTH, WIDTH)
        self.keys, self.values = (nn.Parameter(torch.randn(5, WIDTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.to_q(x) @ self.keys.mT).softmax(-1) @ self.values


class ProjectedMemory(Projected):
    """Keys and values that are projections of what is learned."""

    def __init__(self) -> None:
        super().__init__(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
        self.memory = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixes(self.to_q(x), self.to_k(self.memory), self.to_v(self.memory))


class OfChannels(Projected):
    """Attention between the groups of channels of each token."""

    def __init__(self) -> None:
        super().__init__(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        groups = self.widen(x).unflatten(-1, (4, WIDTH))
        return x + self.mixes(self.to_q(groups), self.to_k(groups), self.to_v(groups)).mean(-2)


def free(dim: int) -> Callable[..., Tensor]:
    return lambda q, k, v: q.sigmoid() * (k.softmax(dim) * v).sum(dim, keepdim=True)


def result_of(make: Callable[[], nn.Module], dtype: str = "float32") -> Result:
    subject = small_subject(make, width=WIDTH, max_length=256, spec=("bidirectional",), dtype=dtype)
    return run_check(registry.load("FWD227"), subject)


def test_projections_of_which_no_token_reads_anothers_are_found() -> None:
    (finding,) = result_of(lambda: Projected(free(-1))).findings
    assert finding.message.startswith("no token reads another at S=64, whatever the input")
    assert (finding.where.module_class, finding.where.function) == ("Projected", "forward")


@pytest.mark.parametrize("make", [lambda: Projected(free(1)), Memory, ProjectedMemory, OfChannels])
def test_tokens_that_read_others_or_have_no_keys_of_others_are_not(make: Callable[[], nn.Module]) -> None:
    result = result_of(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def in_half_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    assert q.dtype == torch.bfloat16
    return free(1)(q, k, v)


def test_what_half_precision_does_not_show_is_not() -> None:
    result = result_of(lambda: Projected(in_half_alone).bfloat16(), "bfloat16")
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_sparse_or_dense_on_purpose_is_silent(name: str) -> None:
    result = examined(*HEALTHY[name])
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


def as_they_lie(blocks: Tensor) -> Tensor:
    """[rows, 2, 2, 4, 4, width] as [rows, 8, 8, width], by the order of memory: into other places."""
    return blocks.reshape(len(blocks), 8, 8, -1)


def by_their_axes(blocks: Tensor) -> Tensor:
    return blocks.permute(0, 1, 3, 2, 4, 5).reshape(len(blocks), 8, 8, -1)


class Blocks(nn.Module):
    """The mean of each block of four by four of a map of eight by eight, beside each of its places."""

    def __init__(self, put_back: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.put_back = nn.Linear(WIDTH, WIDTH), put_back

    def forward(self, x: Tensor) -> Tensor:
        grid = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 64)).view(-1, 2, 4, 2, 4, WIDTH)
        blocks = self.layer(grid.permute(0, 1, 3, 2, 4, 5))
        mixed = self.put_back(blocks.tanh() + blocks.mean((3, 4), keepdim=True))
        return mixed.reshape(len(x), -1, WIDTH)[:, : x.shape[1]]


class Read(nn.Module):
    """What `moves` makes of tokens."""

    def __init__(self, moves: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.moves = nn.Linear(WIDTH, WIDTH), moves

    def forward(self, x: Tensor) -> Tensor:
        return self.moves(self.layer(x))


def every_second_twice(x: Tensor) -> Tensor:
    return x[:, ::2].repeat_interleave(2, 1)[:, : x.shape[1]]


def the_one_before(x: Tensor) -> Tensor:
    return nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]


def the_mean_of_others(x: Tensor) -> Tensor:
    return (x.sum(1, keepdim=True) - x) / x.shape[1]


def test_blocks_that_are_put_back_in_another_order_are_found() -> None:
    (finding,) = result_of(lambda: Blocks(as_they_lie)).findings
    assert finding.message.startswith("32 of 64 tokens read others and never themselves, as the rest do, at S=64")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Blocks(by_their_axes),
        *(lambda moves=moves: Read(moves) for moves in (every_second_twice, the_one_before, the_mean_of_others)),
    ],
    ids=["blocks", "every second", "before", "others"],
)
def test_tokens_that_all_read_themselves_or_are_left_out_are_not(make: Callable[[], nn.Module]) -> None:
    result = result_of(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
