"""Memory for the newest tokens of a sequence, as decoding adds them one by one."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

FIRST_CAPACITY = 64


class Mark(NamedTuple):
    """Where a buffer stood: enough to forget what was appended since."""

    memory: Tensor | None
    start: int
    end: int
    capacity: int
    is_empty: bool


class TokenBuffer:
    """The newest tokens of a sequence, in order; appending one costs amortised constant time.

    keep: how many tokens survive an append at most; None keeps all. Memory is allocated at the first append, for
    `capacity` tokens at least, grows by doubling, and never beyond 2·keep. What raises leaves the buffer as it was.
    """

    def __init__(self, *, keep: int | None = None, capacity: int = FIRST_CAPACITY) -> None:
        self.keep, self.capacity = keep, capacity if keep is None else min(capacity, 2 * keep)
        self._memory: Tensor | None = None  # [B, G, capacity, D]: the tokens of a row and group lie side by side
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, x: Float[Tensor, "B T G D"]) -> Float[Tensor, "B S G D"]:
        """Add tokens; returns those held and the new ones, before any is dropped, valid until the next append."""
        needed = len(self) + x.shape[1]
        if self.keep is not None and needed > 2 * self.keep:  # more than may be held: only the newest are written
            seen = x if not len(self) else torch.cat((self._tokens(), x), dim=1)
            self._move(seen[:, needed - self.keep :])
            return seen
        if self._memory is None or self._end + x.shape[1] > self.capacity:
            self._move(x, held=len(self))
        else:
            self._memory[:, :, self._end : self._end + x.shape[1]] = x.transpose(1, 2)
            self._end += x.shape[1]
        return self._tokens()

    def tokens(self) -> Float[Tensor, "B S G D"]:
        """Those held, valid until the next append; there was one before."""
        return self._tokens()

    def reserve(self, num_tokens: int) -> Float[Tensor, "B G capacity D"]:
        """Memory with room for so many tokens in all, those held at its start: of a buffer that keeps all."""
        assert self.keep is None
        assert self._memory is not None
        if num_tokens > self.capacity:
            self._move(self._tokens()[:, :0], held=len(self), least=num_tokens)
        return self._memory

    def adopt(self, memory: Float[Tensor, "B G capacity D"], num_tokens: int) -> None:
        """Hold the first tokens of a memory that was filled elsewhere: a buffer that keeps all."""
        assert self.keep is None
        self._memory, self._start, self._end, self.capacity = memory, 0, num_tokens, memory.shape[2]

    def mark(self) -> Mark:
        """Where it stands now; memory that only grows is not held on to, since its tokens stay in whatever follows."""
        memory = None if self.keep is None else self._memory
        return Mark(memory, self._start, self._end, self.capacity, self._memory is None)

    def go_back(self, mark: Mark) -> None:
        """Forget what was appended and dropped since; only what has `keep` may have been dropped from."""
        if self.keep is None and not mark.is_empty:
            self._end = self._start + mark.end - mark.start
        else:
            self._memory, self._start, self._end, self.capacity = mark[:4]

    def drop_to(self, count: int) -> None:
        """Forget all but the newest `count` tokens."""
        self._start = max(self._start, self._end - count)

    def fill_unwritten(self, value: float) -> None:
        """Overwrite all memory that holds no token: nothing may read it, so nothing may change."""
        if self._memory is not None:
            self._memory[:, :, : self._start] = value
            self._memory[:, :, self._end :] = value

    def select_rows(self, rows: Int[Tensor, " R"]) -> None:
        """Hold these rows, in this order, in memory of their own; marks made before are void."""
        if self._memory is not None:
            with torch.inference_mode(False):  # memory made in inference mode could not be written outside it
                self._memory = self._memory.index_select(0, rows.to(self._memory.device))

    def num_bytes(self) -> int:
        """Memory allocated."""
        return 0 if self._memory is None else self._memory.nbytes

    def _tokens(self) -> Tensor:
        assert self._memory is not None
        return self._memory[:, :, self._start : self._end].transpose(1, 2)

    def _move(self, x: Tensor, held: int = 0, least: int = 0) -> None:
        """Take other memory for the tokens held and `x` behind them; what was written before is left as it is."""
        num_tokens = held + x.shape[1]
        capacity = self._capacity_for(max(num_tokens, least))
        with torch.inference_mode(False):  # memory made in inference mode could not be written outside it
            memory = torch.empty((x.shape[0], x.shape[2], capacity, x.shape[3]), dtype=x.dtype, device=x.device)
        if held and self._memory is not None:
            memory[:, :, :held] = self._memory[:, :, self._start : self._end]
        memory[:, :, held:num_tokens] = x.transpose(1, 2)
        self._memory, self._start, self._end, self.capacity = memory, 0, num_tokens, capacity

    def _capacity_for(self, needed: int) -> int:
        if self._memory is None:
            return max(needed, self.capacity)
        if self.keep is None:
            return max(needed, 2 * self.capacity)
        is_large_enough = 2 * needed <= self.capacity or self.capacity == 2 * self.keep
        return self.capacity if is_large_enough else max(needed, min(2 * self.capacity, 2 * self.keep))
