"""From a configuration to what a run computes with: device, model, optimizer."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from nsa.backends import why_not_flash, why_not_triton
from nsa.config import RunConfig
from nsa.nn import Transformer
from nsa.train.failures import OutOfMemoryError, RefusedError
from nsa.train.objective import Objective, num_targets
from nsa.train.optimizer import make_optimizer
from nsa.train.spread import context_of, spread
from nsa.train.world import World


@dataclass(frozen=True)
class Machinery:
    """`objective` holds the model; `called` is what to call in its place when it is spread over processes."""

    config: RunConfig
    device: torch.device
    objective: Objective
    called: nn.Module
    optimizer: AdamW

    @property
    def model(self) -> Transformer:
        """The model alone, with its parameters' own names."""
        return self.objective.model

    @contextmanager
    def precision(self) -> Iterator[None]:
        """What a forward pass runs in."""
        is_half = self.config.runtime.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_half):
            yield

    def loss(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """The mean over the targets of one micro-batch, of this process alone."""
        with self.precision():
            summed: Tensor = self.objective(tokens.to(self.device), documents.to(self.device))
        return summed / max(num_targets(documents), 1)


def device_type(config: RunConfig) -> str:
    """`cpu` or `cuda`; raises RefusedError for a GPU that is not there."""
    wanted = config.runtime.device
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RefusedError("runtime.device must be cpu or auto on a machine without a CUDA device, got cuda")
    return wanted


def device_of(kind: str, world: World) -> torch.device:
    """The one that is this process's own."""
    if kind == "cpu":
        return torch.device("cpu")
    if world.local_rank >= torch.cuda.device_count():
        raise RefusedError(
            f"--nproc-per-node must be at most the {torch.cuda.device_count()} CUDA devices of this machine, "
            f"got a process {world.local_rank + 1}"
        )
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


def build(config: RunConfig, world: World, device: torch.device) -> Machinery:
    """A model with the weights of the seed, the same on every device and in every process, and its optimizer."""
    _refuse_what_cannot_be(config, world, device)
    random.seed(config.train.seed)
    torch.manual_seed(config.train.seed)
    with explaining_memory(config):
        model = Transformer(config.model, "flash" if config.runtime.use_flash else "auto").to(device)
        context = context_of(config, world, device)
        objective = Objective(model, checkpointing=config.runtime.activation_checkpointing, context=context)
        if config.runtime.compile:
            for block in model.blocks:
                block.compile()
        called = spread(objective, config, world, device)
        return Machinery(config, device, objective, called, make_optimizer(model, config.train))


@contextmanager
def explaining_memory(config: RunConfig) -> Iterator[None]:
    """Raise OutOfMemoryError, with what to change, when a device or the machine has no more."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(_no_memory(config)) from error
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise OutOfMemoryError(_no_memory(config)) from error


def _no_memory(config: RunConfig) -> str:
    advice = "give a smaller train.batch_size and a larger train.accumulate_grad_batches"
    if not config.runtime.activation_checkpointing:
        advice += ", or runtime.activation_checkpointing true"
    size = f"{config.train.batch_size} rows of {config.train.seq_len} tokens"
    return f"out of memory with micro-batches of {size}: {advice}"


def _refuse_what_cannot_be(config: RunConfig, world: World, device: torch.device) -> None:
    if config.runtime.precision == "fp16":
        raise RefusedError("runtime.precision must be fp32 or bf16 to train (fp16 needs a scaled loss), got fp16")
    if world.size > 1 and config.runtime.distributed == "fsdp2" and config.train.on_nonfinite == "trace":
        raise RefusedError("train.on_nonfinite must be stop or skip with fsdp2, where no process holds a whole model")
    if world.context_size > 1 and config.train.on_nonfinite == "trace":
        raise RefusedError(
            "train.on_nonfinite must be stop or skip with context_parallel, where no process computes a whole row"
        )
    runtime, size = config.runtime, max(config.model.d_k, config.model.d_v)
    try:
        no_flash = why_not_flash(device, torch.bfloat16, size)
    except ValueError as error:  # a flag that is neither 0 nor 1, which every forward pass would refuse
        raise RefusedError(str(error)) from error
    no_triton = why_not_triton(device, torch.bfloat16, size)
    for name, why in (("use_flash", no_flash), ("use_triton_sel", no_triton)):
        if getattr(runtime, name) and why is not None:
            raise RefusedError(f"runtime.{name} must be false here: {why}")
