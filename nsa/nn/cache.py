"""What decoding keeps of the past: one cache per branch, in memory that grows by doubling.

A cache serves inference: it keeps values, not the graph that made them, and refuses what would need a gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from nsa.nn.buffer import FIRST_CAPACITY, Mark, TokenBuffer
from nsa.nn.rope import frequencies
from nsa.ops.decode.memory import StepMemory, step_memory
from nsa.ops.geometry import Geometry
from nsa.ops.reads import ReadCounter
from nsa.types import CompressedKey, CompressedValue, Key, Value

Compress = Callable[[Tensor], Tensor]


class Tokens(NamedTuple):
    """Keys and values per branch; to attend, k_cmp and v_cmp are compressed, before it they are what is to be."""

    k_cmp: CompressedKey
    v_cmp: CompressedValue
    k_sel: Key
    v_sel: Value
    k_win: Tensor
    v_win: Tensor


@dataclass(frozen=True)
class CacheReads:
    """Keys read since the cache was made, int64 [B, G] each.

    compressed, selected, sliding: by queries, counted from the masks the operators apply. emission: tokens read to
    compute compressed ones.
    """

    compressed: Int[Tensor, "B G"]
    selected: Int[Tensor, "B G"]
    sliding: Int[Tensor, "B G"]
    emission: Int[Tensor, "B G"]


class NSACache:
    """Keys and values of the past for one layer: all tokens to select from, all compressed tokens, the window, and the
    tokens not yet compressed.

    batch: rows that are decoded together. max_length: tokens to make room for at once, if known; more may follow.
    count_reads: count every key read in `reads`; slower, and plain torch alone can count.
    """

    def __init__(
        self, geometry: Geometry, batch: int, max_length: int | None = None, *, count_reads: bool = False
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.geometry, self.batch, self.counts_reads = geometry, batch, count_reads
        self.length = 0
        self.reads: CacheReads | None = None
        self.records_past = False
        self._records: list[_Record] = []  # one for each append since the past is recorded, the newest last
        self._kind: tuple[torch.dtype, torch.device] | None = None
        self._steps: StepMemory | None = None  # in place of the buffers, while kernels decode
        length = max_length or FIRST_CAPACITY
        self._selected = [TokenBuffer(capacity=length) for _ in range(2)]
        self._compressed = [TokenBuffer(capacity=max(1, geometry.num_compressed(length))) for _ in range(2)]
        self._sliding, self._pending = self._rings()

    def append(self, new: Tokens, compress_k: Compress, compress_v: Compress) -> Tokens:
        """Add tokens to every branch; returns what their queries attend to, valid until the next append.

        Compressed tokens are emitted as their last token arrives. Raises ValueError while gradients are on, or when
        rows, dtype or device differ from what is held. Whatever is raised, nothing is added.
        """
        self._check(new)
        mark = self.mark() if self.records_past else None
        with added_whole(self):
            added = self._append(new, compress_k, compress_v)
        if mark is not None:
            self._records.append(_Record(mark, new, compress_k, compress_v))
        return added

    def record_past(self) -> None:
        """Keep what every append adds from here on, so that `crop` can take it back; plain torch alone serves then."""
        if self.counts_reads:
            raise ValueError("a cache that counts reads cannot record its past: tokens taken back were read")
        self._take_back()
        self.records_past = True

    def crop(self, num_tokens: int) -> None:
        """Forget the newest tokens, as if they had never been added, and what was recorded to do so.

        Raises ValueError where some of them were added before `record_past` or before the last `crop`.
        """
        most = self.length - self._records[0].mark.length if self._records else 0
        if not 0 <= num_tokens <= most:
            raise ValueError(f"num_tokens must be 0 to {most}, those added since record_past, got {num_tokens}")
        left = self.length - num_tokens
        while self.length > left:
            record = self._records[-1]
            self.go_back(record.mark)
            if self.length < left:
                kept = Tokens(*(x[:, : left - self.length] for x in record.new))
                self._append(kept, record.compress_k, record.compress_v)
        self._records = []

    def select_rows(self, rows: Int[Tensor, " R"]) -> None:
        """Hold these of its rows, in this order, one as often as it is named; what was recorded is forgotten."""
        self._take_back()
        for buffer in self._buffers():
            buffer.select_rows(rows)
        if self.reads is not None:
            reads = (getattr(self.reads, field.name) for field in fields(CacheReads))
            self.reads = CacheReads(*(count.index_select(0, rows.to(count.device)) for count in reads))
        self.batch, self._records = rows.shape[0], []

    @property
    def kind(self) -> tuple[torch.dtype, torch.device] | None:
        """Dtype and device of what is held; None before the first token."""
        return self._kind

    @property
    def capacity(self) -> int:
        """Tokens that there is room for without other memory."""
        return self._selected[0].capacity if self._steps is None else self._steps.capacity

    @property
    def is_stepping(self) -> bool:
        """Whether its tokens lie in memory that the kernels of decoding fill."""
        return self._steps is not None

    def step_memory(self, num_heads: int, num_kv: int, rope_theta: float) -> StepMemory:
        """Its tokens, of which there are some, as the kernels of decoding take them, with room for one more.

        What they add counts once `stepped` says so; an `append` takes the tokens back.
        """
        if self._steps is None or self.length == self._steps.capacity:
            self._take_back()
            room = self.length + 1 if self.length < self._selected[0].capacity else 2 * self.length
            k_sel, v_sel = (buffer.reserve(room) for buffer in self._selected)
            most = max(1, self.geometry.num_compressed(k_sel.shape[2]))
            k_cmp, v_cmp = (buffer.reserve(most) for buffer in self._compressed)
            window, waiting = ((k.tokens(), v.tokens()) for k, v in (self._sliding, self._pending))
            turns = frequencies(k_sel.shape[3], rope_theta, k_sel.device)
            self._steps = step_memory(
                self.geometry, num_heads, num_kv, turns, (k_cmp, v_cmp), (k_sel, v_sel), window, waiting, self.length
            )
        return self._steps

    def stepped(self) -> None:
        """Count the token that the kernels have added."""
        self.length += 1

    def _take_back(self) -> None:
        """Hold in the buffers again what the kernels have written."""
        steps, self._steps = self._steps, None
        if steps is None:
            return
        num_compressed = self.geometry.num_compressed(self.length)
        for buffer, memory in zip(self._selected, (steps.k_sel, steps.v_sel), strict=True):
            buffer.adopt(memory, self.length)
        for buffer, memory in zip(self._compressed, (steps.k_cmp, steps.v_cmp), strict=True):
            buffer.adopt(memory, num_compressed)
        self._sliding, self._pending = self._rings()
        for buffer, x in zip(self._sliding, steps.window(self.length), strict=True):
            buffer.append(x)
        for buffer, x in zip(self._pending, steps.waiting(self.length), strict=True):
            buffer.append(x)

    def _rings(self) -> tuple[list[TokenBuffer], list[TokenBuffer]]:
        """Empty buffers for the window and for the tokens not yet compressed."""
        window, pending = self.geometry.w, self.geometry.l
        return [TokenBuffer(keep=window) for _ in range(2)], [TokenBuffer(keep=pending) for _ in range(2)]

    def _append(self, new: Tokens, compress_k: Compress, compress_v: Compress) -> Tokens:
        self._take_back()
        self._kind = (new.k_sel.dtype, new.k_sel.device)
        emitted_before = self.geometry.num_compressed(self.length)
        self.length += new.k_sel.shape[1]
        num_emitted = self.geometry.num_compressed(self.length) - emitted_before
        k_cmp, v_cmp = (
            self._emit(num_emitted, x, pending, compressed, compress)
            for x, pending, compressed, compress in zip(
                (new.k_cmp, new.v_cmp), self._pending, self._compressed, (compress_k, compress_v), strict=True
            )
        )
        k_sel, v_sel = (buffer.append(x) for buffer, x in zip(self._selected, (new.k_sel, new.v_sel), strict=True))
        k_win, v_win = (buffer.append(x) for buffer, x in zip(self._sliding, (new.k_win, new.v_win), strict=True))
        for buffer in self._sliding:
            buffer.drop_to(self.geometry.w - 1)
        if self.counts_reads:
            self._add_reads(new.k_sel, emission=num_emitted * self.geometry.l)
        return Tokens(k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)

    def count(self, counter: ReadCounter) -> None:
        """Add what the queries of one call read."""
        assert counter.compressed is not None
        assert counter.selected is not None
        assert counter.sliding is not None
        per_query = {"compressed": counter.compressed, "selected": counter.selected, "sliding": counter.sliding}
        self._add_reads(counter.compressed, **{branch: reads.sum(1) for branch, reads in per_query.items()})

    def fill_unwritten(self, value: float) -> None:
        """Overwrite all memory that holds no token: nothing may read it, so nothing may change."""
        if self._steps is not None:
            self._steps.fill_unwritten(value, self.length)
            return
        for buffer in self._buffers():
            buffer.fill_unwritten(value)

    def num_bytes(self) -> int:
        """Memory allocated for tokens."""
        if self._steps is not None:
            return self._steps.num_bytes()
        return sum(buffer.num_bytes() for buffer in self._buffers())

    def _emit(
        self, num_emitted: int, x: Tensor, pending: TokenBuffer, compressed: TokenBuffer, compress: Compress
    ) -> Tensor:
        waiting = pending.append(x)
        emitted = compress(waiting) if num_emitted else x[:, :0]  # `waiting` starts where the next block does
        assert emitted.shape[1] == num_emitted
        pending.drop_to(waiting.shape[1] - num_emitted * self.geometry.d)
        return compressed.append(emitted)

    def _add_reads(self, like: Tensor, **reads: Tensor | int) -> None:
        """Replace the totals by others, so that whoever goes back finds the earlier ones."""
        names = [field.name for field in fields(CacheReads)]
        none = torch.zeros((like.shape[0], like.shape[2]), dtype=torch.int64, device=like.device)
        totals = {name: none if self.reads is None else getattr(self.reads, name) for name in names}
        self.reads = CacheReads(**{name: total + reads.get(name, 0) for name, total in totals.items()})

    def _check(self, new: Tokens) -> None:
        if torch.is_grad_enabled():
            raise ValueError("cache must be used under torch.no_grad() or torch.inference_mode(): it keeps no graph")
        if new.k_sel.shape[0] != self.batch:
            raise ValueError(f"x must have {self.batch} rows to match the cache, got {new.k_sel.shape[0]}")
        kind = (new.k_sel.dtype, new.k_sel.device)
        if self._kind not in (None, kind):
            raise ValueError(f"cache holds {self._kind}, got {kind}; make a new cache to change dtype or device")

    def _buffers(self) -> Iterator[TokenBuffer]:
        return chain(self._selected, self._compressed, self._sliding, self._pending)

    def mark(self) -> "CacheMark":
        """Where it stands now."""
        buffers = [] if self._steps is not None else [buffer.mark() for buffer in self._buffers()]
        return CacheMark(self.length, self._kind, self.reads, self._steps, buffers)

    def go_back(self, mark: "CacheMark") -> None:
        """Forget what was appended since; of what the kernels of decoding added, the last token."""
        assert mark.steps is None or self.length <= mark.length + 1 or self._steps is not mark.steps
        self.length, self._kind, self.reads, self._steps = mark.length, mark.kind, mark.reads, mark.steps
        self._records = [record for record in self._records if record.mark.length < mark.length]
        if mark.steps is not None:
            mark.steps.count[:1].fill_(mark.length)
            return
        for buffer, one in zip(self._buffers(), mark.buffers, strict=True):
            buffer.go_back(one)


class CacheMark(NamedTuple):
    """Where a cache stood: enough to forget what was appended since."""

    length: int
    kind: tuple[torch.dtype, torch.device] | None
    reads: CacheReads | None
    steps: StepMemory | None
    buffers: Sequence[Mark]


class _Record(NamedTuple):
    """One append: where the cache stood before it, and what was added by which compressors."""

    mark: CacheMark
    new: Tokens
    compress_k: Compress
    compress_v: Compress


@contextmanager
def added_whole(*caches: NSACache) -> Iterator[None]:
    """What the block adds to these caches is added to all of them, or, when it raises, to none."""
    marks = [cache.mark() for cache in caches]
    try:
        yield
    except BaseException:
        for cache, mark in zip(caches, marks, strict=True):
            cache.go_back(mark)
        raise
