"""A small source of data that needs no file: each token is a fixed function of the one before it, most of the time."""

from collections.abc import Iterator
from typing import Any

import torch

from nsa.data import Batch, DataError

VOCABULARY = 32


class Chain:
    """The loader that `open_chain` opens; `ends_after` batches it has no more, at `breaks_at` it fails."""

    vocab_size = VOCABULARY
    entropy: float | None = 0.4
    description = "a chain"

    def __init__(self, config, rank, world_size, split, state, ends_after=None, breaks_at=None, wait=None):
        self.rows, self.length = config.train.batch_size, config.train.seq_len
        self.rank, self.world_size = rank, world_size
        self.seed = config.train.seed * 1_000_003 + (split == "heldout") * 500_009
        self.given = 0 if state is None else state["given"]
        self.ends_after, self.breaks_at, self.wait = ends_after, breaks_at, wait

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.given == self.ends_after:
            raise StopIteration
        if self.given == self.breaks_at:
            raise DataError("shard 3 of corpus: cannot be read: No such file or directory")
        if self.wait is not None:
            self.wait(self.given)
        first = (self.given * self.world_size + self.rank) * self.rows
        tokens = torch.stack([self._row(first + row) for row in range(self.rows)])
        documents = (torch.arange(self.length + 1) >= self.length // 2).int().expand(self.rows, -1).contiguous()
        batch = Batch(tokens=tokens, documents=documents, step=self.given, fetch_seconds=0.0, sources=(f"row {first}",))
        self.given += 1
        return batch

    def state(self) -> dict[str, Any]:
        return {"given": self.given}

    def oracle_loss(self, tokens) -> float | None:
        return None

    def close(self) -> None:
        pass

    def _row(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + number)
        jumps = torch.rand(self.length + 1, generator=generator) < 0.1
        drawn = torch.randint(0, VOCABULARY, (self.length + 1,), generator=generator).tolist()
        row = drawn[:1]
        for place in range(1, self.length + 1):
            row.append(drawn[place] if bool(jumps[place]) else (5 * row[-1] + 3) % VOCABULARY)
        return torch.tensor(row)


def open_chain(config, *, rank=0, world_size=1, split="train", state=None, **faults) -> Chain:
    """In place of `nsa.data.open_loader`; faults are for the training rows alone."""
    return Chain(config, rank, world_size, split, state, **(faults if split == "train" else {}))
