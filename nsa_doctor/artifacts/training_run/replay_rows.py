"""The rows that a run of nsa.train made its steps with, drawn again from where a checkpoint stands in the data."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from nsa.config import RunConfig
from nsa.data import Batch, DataError, open_loader
from nsa.data.loader import Loader
from nsa.data.sources import Split

_SUMMED_IDS = 8192


@dataclass(frozen=True)
class Rows:
    """`positions`: where each process stands, as its checkpoint says."""

    config: RunConfig
    positions: Sequence[Mapping[str, Any]]

    def of_steps(self, count: int) -> Iterator[list[list[Batch]]]:
        """The micro-batches of each process, step after step. Raises DataError."""
        with ExitStack() as stack:
            loaders = [stack.enter_context(self._opened(rank, "train")) for rank in range(len(self.positions))]
            for _ in range(count):
                yield [list(islice(loader, self._own // self._at_once)) for loader in loaders]

    def held_out(self) -> Iterator[Batch]:
        """Those that the run is evaluated on."""
        train = self.config.train
        rows = self._at_once * len(self.positions)
        for rank in range(len(self.positions)):
            with self._opened(rank, "heldout") as loader:
                yield from islice(loader, -(-train.eval_batches * train.batch_size // rows))

    def _opened(self, rank: int, split: Split) -> closing[Loader]:
        document = self.config.model_dump()
        document["train"]["batch_size"] = self._at_once
        state = self.positions[rank] if split == "train" else None
        config, size = RunConfig(**document), len(self.positions)
        return closing(open_loader(config, rank=rank, world_size=size, split=split, state=state))

    @property
    def _own(self) -> int:
        """Rows of a process and step."""
        train, size = self.config.train, len(self.positions)
        rows = train.batch_size * train.accumulate_grad_batches
        if not size or rows % size:
            raise DataError(f"{rows} rows a step cannot be dealt out to {size} processes")
        return rows // size

    @property
    def _at_once(self) -> int:
        """Rows of a micro-batch: as many as may be, and as divide a process's rows."""
        most = min(self._own, self.config.train.batch_size)
        return next(count for count in range(most, 0, -1) if self._own % count == 0)


def checksum(tokens: Tensor) -> str:
    """As nsa's heartbeats tell it: the CRC-32 of the first ids."""
    return f"{zlib.crc32(tokens.flatten()[:_SUMMED_IDS].numpy().tobytes()):08x}"
