"""How a run is spread over processes: copies of the model (DDP) or its shards (FSDP2), shared rows, equal copies."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from nsa.config import RunConfig
from nsa.nn import Context
from nsa.nn.context import why_not_shared
from nsa.train.failures import RankError, RefusedError
from nsa.train.objective import Objective
from nsa.train.world import World


def context_of(config: RunConfig, world: World, device: torch.device) -> Context | None:
    """The processes that share this one's rows; None where it has them for itself."""
    if world.context_size == 1:
        return None
    why_not = why_not_shared(config.train.seq_len, world.context_size, config.model.geometry)
    if why_not is not None:
        raise RefusedError(f"train.seq_len must be of a length that runtime.context_parallel can share: {why_not}")
    mesh = init_device_mesh(device.type, (world.num_readers, world.context_size), mesh_dim_names=("readers", "context"))
    return Context(mesh.get_group("context"))


def spread(objective: Objective, config: RunConfig, world: World, device: torch.device) -> nn.Module:
    """What to call in place of `objective`; alone, itself."""
    kind = config.runtime.distributed
    if world.size == 1:
        return objective
    if kind == "none":
        raise RefusedError(f"runtime.distributed must be ddp or fsdp2 for {world.size} processes, got none")
    if kind == "ddp":
        return DistributedDataParallel(
            objective,
            device_ids=[device.index] if device.type == "cuda" else None,
            find_unused_parameters=config.model.branch != "all",  # one branch alone leaves the gate out
        )
    mesh = init_device_mesh(device.type, (world.size,))
    policy = MixedPrecisionPolicy()
    if config.runtime.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in objective.model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(objective, mesh=mesh, mp_policy=policy)
    return objective


@contextmanager
def accumulating(called: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Exchange gradients after the last micro-batch of a step alone."""
    if isinstance(called, DistributedDataParallel) and not is_last:
        with called.no_sync():
            yield
        return
    if isinstance(called, FSDPModule):
        called.set_requires_gradient_sync(is_last)
    yield


@contextmanager
def whole(objective: nn.Module) -> Iterator[None]:
    """Let parts of the model be called on their own, with all their parameters at hand."""
    sharded = [module for module in objective.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    yield
    for module in sharded:
        module.reshard()


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be spread over processes; all of them have to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_out(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as this process keeps it: on the device of `like`, and this process's shard if it is one."""
    moved = value.to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements) if isinstance(like, DTensor) else moved


def require_equal_copies(model: nn.Module, world: World, step: int) -> None:
    """Raise RankError, on every process, when one holds other parameters than the first."""
    copies = [(name, value) for name, value in model.named_parameters() if not isinstance(value, DTensor)]
    if world.size == 1 or not copies:
        return
    sums = world.gather_integers(torch.stack([_checksum(value.detach()) for _, value in copies]))
    for rank, found in enumerate(sums):
        differing = (found != sums[0]).nonzero().flatten().tolist()
        if differing:
            name, others = copies[differing[0]][0], len(differing) - 1
            more = f" and {others} more" if others else ""
            raise RankError(f"after step {step} rank {rank} holds another {name}{more} than rank 0")


def _checksum(value: Tensor) -> Tensor:
    """A number that any changed bit changes: the bits of every element, weighed by its place."""
    bits = value.contiguous().view(torch.uint8).flatten().to(torch.int64)
    place = torch.arange(1, bits.numel() + 1, device=bits.device)
    return (bits * (place % 65_521 + 1)).sum()
