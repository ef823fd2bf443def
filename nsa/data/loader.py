"""Batches of token rows for one rank: the same global order for any number of ranks, resumable at each batch."""

import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from types import TracebackType
from typing import Any, Literal

from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from nsa.config import Count, RunConfig
from nsa.data.batch import Batch, Row, stacked
from nsa.data.errors import DataError
from nsa.data.feeder import Feeder
from nsa.data.progress import Progress
from nsa.data.sources import Source, Split, open_source
from nsa.strict import ConfigError, Strict, plain, shown

_FORMAT: Literal[1] = 1


class _State(Strict):
    format: Literal[1] = Field(description="of the state itself")
    identity: dict[str, str | int] = Field(description="what the order of rows depends on")
    step: Count = Field(description="batches given before")
    rows: dict[str, int] = Field(description="the position in the source")


@dataclass(frozen=True)
class Share:
    """Rows rank, rank + world_size, … of each global batch of rows · world_size."""

    rank: int
    world_size: int
    rows: int


class Loader:
    """An iterator of `Batch` that never ends; close it, or use it as a context manager.

    A batch that does not come in time raises LoaderStalledError and may be asked for again; other errors are final.
    """

    def __init__(self, source: Source, share: Share, state: _State, limit_seconds: float) -> None:
        self.vocab_size, self.entropy, self.description = source.vocab_size, source.entropy, source.description
        self._source, self._limit_seconds = source, limit_seconds
        self._state = state
        self._feeder = Feeder(_Batches(source, share, state))
        self._last_will = weakref.finalize(self, self._feeder.close)

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Batch:
        began = time.monotonic()
        batch, self._state = self._feeder.next(self._limit_seconds)
        return replace(batch, fetch_seconds=time.monotonic() - began)

    def state(self) -> dict[str, Any]:
        """Plain data, from which `open_loader` goes on with the batch after the last one given."""
        return self._state.model_dump()

    def oracle_loss(self, tokens: Int64[Tensor, "B longer"]) -> float | None:
        """Mean nats per target of the best predictor on these rows, where the source is known; no model is better."""
        return self._source.oracle_loss(tokens) if self._source.oracle_loss else None

    def close(self) -> None:
        """Ends the thread that reads; a `next` under way raises DataError."""
        self._last_will()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_loader(
    config: RunConfig,
    *,
    rank: int = 0,
    world_size: int = 1,
    split: Split = "train",
    state: Mapping[str, Any] | None = None,
    limit_seconds: float | int | None = None,
) -> Loader:
    """Batches of `config.data` for one rank: `config.train.batch_size` rows of `config.train.seq_len + 1` tokens.

    The global order of rows depends on data, tokenizer, seed and split alone; rank r of N gets rows r, r + N, … of it.
    state: what `Loader.state()` gave, on any number of ranks. limit_seconds: by default `config.data.limit_seconds`.
    Raises DataError for what can be known before reading; the rest comes from `next`.
    """
    limit = config.data.limit_seconds if limit_seconds is None else float(limit_seconds)
    if not limit > 0:
        raise ValueError(f"limit_seconds must be above 0, got {limit}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be at least 0 and below world_size={world_size}, got {rank}")
    source = open_source(config, split)
    if source.vocab_size > config.model.vocab_size:
        raise DataError(
            f"model.vocab_size must be at least {source.vocab_size} for {source.description}, "
            f"got {config.model.vocab_size}"
        )
    share = Share(rank, world_size, config.train.batch_size)
    return Loader(source, share, _opening(source, state), limit)


class _Batches:
    """Makes (batch, state after it) from a state on."""

    def __init__(self, source: Source, share: Share, state: _State) -> None:
        self._source, self._share, self._state = source, share, state

    def __call__(self, progress: Progress) -> Iterator[tuple[Batch, _State]]:
        share, state = self._share, self._state
        rows = self._source.rows(state.rows, progress)
        for step in count(state.step):
            mine: list[Row] = []
            for index in range(share.rows * share.world_size):
                found = next(rows, None)
                if found is None:
                    raise DataError(f"{self._source.description}: ended after {step} batches, and data never should")
                row, position = found
                if index % share.world_size == share.rank:
                    mine.append(row)
            state = state.model_copy(update={"step": step + 1, "rows": position})
            yield stacked(mine, step, row.epoch), state


def _opening(source: Source, given: Mapping[str, Any] | None) -> _State:
    if given is None:
        return _State(format=_FORMAT, identity=source.identity, step=0, rows=source.start)
    try:
        state = _State(**given)
        source.check(state.rows)
    except ConfigError as error:
        raise DataError(f"the saved position in the data cannot be used: {error}") from None
    for key in source.identity.keys() | state.identity.keys():
        saved, now = state.identity.get(key), source.identity.get(key)
        if saved != now:
            raise DataError(
                f"the saved position in the data is of a run with {plain(key)} {shown(saved)}, "
                f"this run has {shown(now)}: its rows would be others"
            )
    return state
