"""The processes of a run: who am I, what do the others say, and why did one of them end.

Small facts travel over gloo on the CPU, whatever carries the gradients: they wait for no GPU, and a process that dies
is noticed at once.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from nsa.train.failures import RankError, RefusedError
from nsa.train.heartbeat import ENDED, is_held, last_beat

_REASON = "failure_rank{rank}.json"
_SECONDS_TO_SAY_WHY = 3.0
_SECONDS_TO_SETTLE = 0.2


@dataclass(frozen=True)
class World:
    """One process among `size`; alone, every exchange is with itself.

    context_size: how many of them, one after the other, share each row.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    context_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    @property
    def num_readers(self) -> int:
        """Processes, or groups of them, that read rows of their own."""
        return self.size // self.context_size

    @property
    def reader(self) -> int:
        """Which of these this process belongs to."""
        return self.rank // self.context_size

    def total_of_rows(self, values: Sequence[float]) -> list[float]:
        """The sum, over all rows once, of what every process counts of the whole rows that it reads."""
        found = self.gather(values)[:: self.context_size]
        return [sum(each) for each in zip(*found, strict=True)]

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """These numbers of every process, in the order of ranks; whole numbers up to 2^53 stay exact."""
        own = torch.tensor(list(values), dtype=torch.float64)
        if self.size == 1:
            return [own.tolist()]
        found = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(found, own)
        return [each.tolist() for each in found]

    def gather_integers(self, values: torch.Tensor) -> list[torch.Tensor]:
        """An int64 tensor of every process."""
        own = values.cpu()
        if self.size == 1:
            return [own]
        found = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(found, own)
        return found

    def gather_objects(self, value: Any) -> list[Any]:
        """Plain data of every process."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Until every process has come here."""
        if self.size > 1:
            self.gather([0.0])


@contextmanager
def joined(timeout_seconds: float, device: str, context_size: int = 1) -> Iterator[World]:
    """The processes that torchrun started, or this one alone; whoever waits for another gives up after the timeout."""
    if not distributed.is_torchelastic_launched():
        _refuse_context(context_size, 1)
        yield World()
        return
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    try:
        distributed.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    except (RuntimeError, ValueError) as error:
        raise RefusedError(f"the processes cannot reach each other: {_first_line(error)}") from error
    size = distributed.get_world_size()
    _refuse_context(context_size, size)
    yield World(distributed.get_rank(), size, distributed.get_node_local_rank(0), context_size)
    time.sleep(_SECONDS_TO_SETTLE)  # gloo's thread may still need the interpreter that its end is waited for with
    distributed.destroy_process_group()


def _refuse_context(context_size: int, size: int) -> None:
    if size % context_size:
        raise RefusedError(
            f"runtime.context_parallel must divide the number of processes, {size} (torchrun starts more), "
            f"got {context_size}"
        )


def say_why(folder: Path, rank: int, reason: str) -> None:
    """Leave word for the other processes before ending."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"rank": rank, "reason": reason, "ts": time.time()})
        (folder / _REASON.format(rank=rank)).write_text(text, encoding="utf-8")
    except OSError:
        return  # the sentence still goes to the terminal


def forget_reasons(folder: Path, rank: int) -> None:
    """Of an earlier life of the run."""
    (folder / _REASON.format(rank=rank)).unlink(missing_ok=True)


@contextmanager
def naming_the_dead(world: World, folder: Path) -> Iterator[None]:
    """Turn a broken exchange into the sentence of the process that broke it."""
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not _is_lost_contact(error):
            raise
        reason = _wait_for(lambda: _reason_of_another(world, folder))
        raise RankError(reason or _silent(world, folder) or f"lost another process: {_first_line(error)}") from error


def _reason_of_another(world: World, folder: Path) -> str | None:
    for rank in range(world.size):
        path = folder / _REASON.format(rank=rank)
        if rank == world.rank or not path.is_file():
            continue
        try:
            failure = json.loads(path.read_text(encoding="utf-8"))
            return f"rank {rank} ended the run: {failure['reason']}"
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _silent(world: World, folder: Path) -> str | None:
    """The process that left no word: those that live have logged how they ended, or have not noticed yet."""
    for rank in range(world.size):
        last = last_beat(folder, rank)
        has_ended = last is not None and str(last.get("msg")).startswith(ENDED)
        if rank != world.rank and last is not None and not has_ended and not is_held(folder, rank):
            seconds = time.time() - float(last["ts"])
            return f"rank {rank} ended without a word, its last heartbeat {seconds:.1f} s ago at step {last['step']}"
    return None


def _wait_for(find: Callable[[], str | None]) -> str | None:
    """The one that broke the exchange may still be writing why."""
    give_up = time.monotonic() + _SECONDS_TO_SAY_WHY
    while (found := find()) is None and time.monotonic() < give_up:
        time.sleep(0.05)
    return found


def _is_lost_contact(error: RuntimeError) -> bool:
    words = ("gloo", "nccl", "connection", "peer", "timed out", "process group")
    return isinstance(error, distributed.DistError) or any(word in str(error).lower() for word in words)


def _first_line(error: Exception) -> str:
    return ascii(str(error).strip().partition("\n")[0][:300])[1:-1]
