"""Memory for the newest tokens of a sequence, as decoding adds them one by one."""

import torch
from jaxtyping import Float
from torch import Tensor

FIRST_CAPACITY = 64


class TokenBuffer:
    """The newest tokens of a sequence, in order; appending one costs amortised constant time.

    keep: how many tokens survive an append at most; None keeps all. Memory is allocated at the first append, for
    `capacity` tokens at least, grows by doubling, and never beyond 2·keep.
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
            self._start = self._end = 0
            self._write(seen[:, needed - self.keep :])
            return seen
        self._write(x)
        return self._tokens()

    def drop_to(self, count: int) -> None:
        """Forget all but the newest `count` tokens."""
        self._start = max(self._start, self._end - count)

    def fill_unwritten(self, value: float) -> None:
        """Overwrite all memory that holds no token: nothing may read it, so nothing may change."""
        if self._memory is not None:
            self._memory[:, :, : self._start] = value
            self._memory[:, :, self._end :] = value

    def num_bytes(self) -> int:
        """Memory allocated."""
        return 0 if self._memory is None else self._memory.nbytes

    def _tokens(self) -> Tensor:
        assert self._memory is not None
        return self._memory[:, :, self._start : self._end].transpose(1, 2)

    def _write(self, x: Tensor) -> None:
        memory = self._room_for(x)
        memory[:, :, self._end : self._end + x.shape[1]] = x.transpose(1, 2)
        self._end += x.shape[1]

    def _room_for(self, x: Tensor) -> Tensor:
        """Memory with room for `x` after the last token; when full, tokens move to its front or to larger memory."""
        memory, held = self._memory, len(self)
        if memory is not None and self._end + x.shape[1] <= self.capacity:
            return memory
        live = None if memory is None else memory[:, :, self._start : self._end]
        if memory is None or self._should_grow(held + x.shape[1]):
            memory = self._allocate(x, held + x.shape[1], doubled=memory is not None)
        elif live is not None:
            live = live.clone()  # it may overlap the front
        if live is not None:
            memory[:, :, :held] = live
        self._memory, self._start, self._end = memory, 0, held
        return memory

    def _should_grow(self, needed: int) -> bool:
        if self.keep is None:
            return needed > self.capacity
        return 2 * needed > self.capacity and self.capacity < 2 * self.keep

    def _allocate(self, x: Tensor, needed: int, *, doubled: bool) -> Tensor:
        capacity = 2 * self.capacity if doubled else self.capacity
        self.capacity = max(needed, capacity if self.keep is None else min(capacity, 2 * self.keep))
        with torch.inference_mode(False):  # memory made in inference mode could not be written outside it
            shape = (x.shape[0], x.shape[2], self.capacity, x.shape[3])
            return torch.empty(shape, dtype=x.dtype, device=x.device)
