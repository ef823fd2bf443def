"""Batches for one process: how the rows of a step are dealt out, and what a loader's failure ends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from nsa.config import RunConfig, TrainConfig
from nsa.data import Batch, DataError, open_loader
from nsa.train.failures import OutOfDataError, RefusedError
from nsa.train.world import World


@runtime_checkable
class Loader(Protocol):
    """What training asks of a loader; `nsa.data.Loader` is one."""

    vocab_size: int
    entropy: float | None
    description: str

    def __next__(self) -> Batch: ...

    def state(self) -> dict[str, Any]: ...

    def oracle_loss(self, tokens: Int[Tensor, "B longer"]) -> float | None: ...

    def close(self) -> None: ...


OpenLoader = Callable[..., Loader]


def rows_and_batches(train: TrainConfig, num_processes: int) -> tuple[int, int]:
    """Rows of a micro-batch of one process, at most `batch_size`, and its micro-batches per step.

    All processes together see `batch_size * accumulate_grad_batches` rows a step, however many they are.
    """
    rows = train.batch_size * train.accumulate_grad_batches
    if rows % num_processes:
        raise RefusedError(
            f"train.batch_size * train.accumulate_grad_batches must be a multiple of the {num_processes} processes "
            f"that read rows of their own, so that each gets as many, got {rows}"
        )
    own = rows // num_processes
    largest = max(size for size in range(1, min(own, train.batch_size) + 1) if own % size == 0)
    return largest, own // largest


class Feed:
    """The training batches of this process and the held-out ones, all of them of equally many rows."""

    def __init__(
        self, config: RunConfig, world: World, state: Mapping[str, Any] | None, open_one: OpenLoader = open_loader
    ) -> None:
        self.rows, self.num_batches = rows_and_batches(config.train, world.num_readers)
        train = config.train.model_copy(update={"batch_size": self.rows})
        self._config, self._world, self._open = config.model_copy(update={"train": train}), world, open_one
        with refusing():
            self._loader = self._open_split("train", state)
        if self._loader.vocab_size > config.model.vocab_size:
            raise RefusedError(
                f"model.vocab_size must be at least the {self._loader.vocab_size} of {self._loader.description}, "
                f"got {config.model.vocab_size}"
            )
        self.entropy, self.description = self._loader.entropy, self._loader.description
        self._num_held_out = -(-config.train.eval_batches * config.train.batch_size // (self.rows * world.num_readers))

    def step(self) -> list[Batch]:
        """The micro-batches of the next step."""
        try:
            batches = [next(self._loader) for _ in range(self.num_batches)]
        except DataError as error:
            raise OutOfDataError(str(error)) from error
        except StopIteration:
            raise OutOfDataError(f"{self._loader.description} has no more batches") from None
        assert all(each.tokens.shape[0] == self.rows for each in batches)
        return batches

    def held_out(self) -> list[Batch]:
        """The batches every evaluation looks at."""
        if not self._num_held_out:
            return []
        with refusing("; give eval_batches 0 to do without"):
            loader = self._open_split("heldout", None)
            try:
                found = list(islice(iter(lambda: next(loader), None), self._num_held_out))
            finally:
                loader.close()
        if not found:
            raise RefusedError(f"{self.description} has no held-out rows; give eval_batches 0 to do without")
        return found

    def oracle_loss(self, batches: Sequence[Batch]) -> float | None:
        """What the best predictor of a known source loses on these rows, per target; below it lies a leak."""
        found = [self._loader.oracle_loss(batch.tokens) for batch in batches]
        known = [each for each in found if each is not None]
        return sum(known) / len(known) if known else None

    def state(self) -> dict[str, Any]:
        """The position in the training data."""
        return self._loader.state()

    def close(self) -> None:
        """No batch is asked for again."""
        self._loader.close()

    def _open_split(self, split: str, state: Mapping[str, Any] | None) -> Loader:
        reader, num_readers = self._world.reader, self._world.num_readers
        return self._open(self._config, rank=reader, world_size=num_readers, split=split, state=state)


@contextmanager
def refusing(advice: str = "") -> Iterator[None]:
    """Data that cannot be opened is refused before the first step."""
    try:
        yield
    except DataError as error:
        raise RefusedError(f"{error}{advice}") from error
