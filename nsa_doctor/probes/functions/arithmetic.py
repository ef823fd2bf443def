"""The least that a problem asks of a machine: products over the pairs it may read, bytes, and how fast either goes."""

import os
from dataclasses import dataclass

import torch

from nsa_doctor.probes.functions.clock import clocked
from nsa_doctor.subject.function import Problem

_MATRIX = {"cpu": 1024, "cuda": 8192}
_COPIED = 2**29
_CACHES = 8  # so many times the last cache, and most of it comes from memory
_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.bfloat16,)}  # float32 may be multiplied with fewer bits


@dataclass(frozen=True)
class Work:
    """Floating-point operations and bytes that a pass cannot do without."""

    operations: float
    bytes: float


@dataclass(frozen=True)
class Rate:
    """Operations and bytes per second that this machine reaches with all it has."""

    operations: float
    bytes: float

    def seconds(self, work: Work) -> float:
        """The least time of that work."""
        return max(work.operations / self.operations, work.bytes / self.bytes)

    def best(self, other: "Rate") -> "Rate":
        """The faster of both, each for itself."""
        return Rate(max(self.operations, other.operations), max(self.bytes, other.bytes))


def forward_work(problem: Problem, device: str) -> Work:
    """Scores and weighted sums of the branch with most pairs; each input read and the output written once."""
    shape = problem.shape
    pairs = max(
        float(each.seen.sum()) * (shape.batch / each.seen.shape[0]) * (shape.heads / each.seen.shape[1])
        for each in problem.branches
    )
    moved = _moved(problem)
    return Work(2 * pairs * (shape.head + shape.value), moved if moved > _CACHES * _last_cache(device) else 0.0)


def backward_work(problem: Problem, device: str) -> Work:
    """Twice the products of forward, where it kept its weights."""
    forward = forward_work(problem, device)
    return Work(2 * forward.operations, forward.bytes)


def types_of(dtype: torch.dtype, device: str) -> tuple[torch.dtype, ...]:
    """The types that a function of that type may multiply in and be right: it, and one with as many bits or fewer."""
    return tuple({dtype, *(_DTYPES[device] if dtype != torch.float64 else ())})


def rate(dtype: torch.dtype, device: str) -> Rate:
    """What one product of large matrices reaches, times the number of cores on a CPU; on a GPU what a copy does."""
    return Rate(_of_product(dtype, device), _of_copy() if device == "cuda" else torch.inf)


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _moved(problem: Problem) -> float:
    """Bytes of the queries, the output, and those keys and values that any query may read."""
    sizes = {name: value.numel() * value.element_size() for name, value in problem.inputs.items()}
    read: dict[str, float] = {}
    for branch in problem.branches:
        share = float(branch.seen.flatten(0, 2).any(0).float().mean())
        read |= {name: max(share, read.get(name, 0.0)) for name in (branch.keys, branch.values)}
    keys_and_values = sum(share * sizes[name] for name, share in read.items())
    return sizes["q"] + problem.dout.numel() * problem.dout.element_size() + keys_and_values


def _last_cache(device: str) -> float:
    """Bytes of a GPU's last cache; a CPU's is not asked for, so that none of its bytes count."""
    return float(torch.cuda.get_device_properties(0).L2_cache_size) if device == "cuda" else torch.inf


def _of_product(dtype: torch.dtype, device: str) -> float:
    size, threads = _MATRIX[device], torch.get_num_threads()
    left, right = (torch.full((size, size), 0.5, dtype=dtype, device=device) for _ in range(2))
    if device == "cuda":
        torch.mm(left, right)
        return 2 * size**3 / clocked(lambda: torch.mm(left, right), device).seen
    torch.set_num_threads(1)
    try:
        return 2 * size**3 / clocked(lambda: torch.mm(left, right), device).seen * cores()
    finally:
        torch.set_num_threads(threads)


def _of_copy() -> float:
    source = torch.zeros(_COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * _COPIED / clocked(lambda: target.copy_(source), "cuda").seen
