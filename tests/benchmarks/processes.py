"""Training steps of several processes beside one: copies (DDP), shards (FSDP2), and rows that the processes share.

torchrun --nproc-per-node 2 -m tests.benchmarks.processes [--config NAME] [--steps ddp:1024:64,context:131072:1]
                                                          [--modes eager,compiled] [--device cuda]

A step is KIND:LENGTH:ROWS with the kinds ddp, fsdp2, context and context-fsdp2. Rows are those of one process, or,
where all share them, of all. Beside each kind every process takes the same steps alone, at the same time and with all
ROWS. First the losses and gradient norms of shared rows are compared with those of one process.
"""

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.config import RunConfig, load_config, with_changes
from nsa.nn import Transformer
from nsa.train.objective import Objective
from nsa.train.optimizer import gradient_norm, make_optimizer
from nsa.train.setup import device_of
from nsa.train.spread import context_of, spread
from nsa.train.world import World, joined

STEPS, WARMUP = 6, 3


@dataclass(frozen=True)
class Taken:
    """What steps of one kind took: the median of the slowest process's seconds, and GiB of the fullest GPU."""

    seconds: float
    gib: float
    losses: tuple[float, ...]
    norms: tuple[float, ...]


class Bench:
    """The processes, and the configuration of all steps."""

    def __init__(self, config: RunConfig, world: World, device: torch.device) -> None:
        self.config, self.world, self.device = config, world, device

    def taken(self, kind: str, length: int, rows: int, *, compiled: bool, steps: int = WARMUP + STEPS) -> Taken:
        """Steps of `kind`, or of each process alone."""
        gc.collect()
        torch._dynamo.reset()  # what was compiled for an earlier model is of no use to this one
        is_gpu = self.device.type == "cuda"
        if is_gpu:
            torch.cuda.empty_cache()
        seconds, losses, norms, made = [], [], [], self._steps(kind, length, rows, compiled=compiled)
        for index in range(steps):
            if index == 2 and is_gpu:
                torch.cuda.reset_peak_memory_stats()
            self.world.wait()
            begin = time.perf_counter()
            loss, norm = next(made)
            losses.append(float(loss))  # which waits for the device
            norms.append(float(norm))
            seconds.append(max(each[0] for each in self.world.gather([time.perf_counter() - begin])))
        own = torch.cuda.max_memory_allocated() / 2**30 if is_gpu else 0.0
        peak = max(each[0] for each in self.world.gather([own]))
        if kind != "alone":  # each has the loss of its own rows or of its part of them
            gathered = self.world.gather(losses)
            losses = [
                sum(each) / (1 if kind.startswith("context") else self.world.size)
                for each in zip(*gathered, strict=True)
            ]
        return Taken(sorted(seconds[WARMUP:])[len(seconds[WARMUP:]) // 2], peak, tuple(losses), tuple(norms))

    def _steps(self, kind: str, length: int, rows: int, *, compiled: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Loss per token of this process, over its own rows or those that all share, and norm of the gradient."""
        is_shared = kind.startswith("context")
        number = {"alone": "ddp"}.get(kind, kind.removeprefix("context-").replace("context", "ddp"))
        changes = [f"train.seq_len={length}", f"runtime.distributed={number}", "runtime.precision=bf16"]
        config = with_changes(self.config, changes if self.device.type == "cuda" else changes[:2])
        size = self.world.size
        world = World() if kind == "alone" else World(*self._place(), size if is_shared else 1)
        torch.manual_seed(0)
        model = Transformer(config.model).to(self.device)
        objective = Objective(model, context=context_of(config, world, self.device))
        for block in model.blocks if compiled else ():
            block.compile()
        called, optimizer = spread(objective, config, world, self.device), make_optimizer(model, config.train)
        reader = 0 if is_shared or kind == "alone" else self.world.rank
        generator = torch.Generator().manual_seed(reader)
        ids = torch.randint(config.model.vocab_size, (rows, length + 1), generator=generator).to(self.device)
        count = rows * length * (1 if is_shared or kind == "alone" else size)
        while True:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.runtime.precision == "bf16"):
                loss = called(ids, torch.zeros_like(ids))
            (loss * (world.size / count)).backward()
            norm = gradient_norm(model.parameters())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.detach() / (rows * length), norm

    def _place(self) -> tuple[int, int, int]:
        return self.world.rank, self.world.size, self.world.local_rank

    def say(self, text: str) -> None:
        if self.world.is_first:
            print(text, flush=True)

    def check(self, length: int) -> None:
        """Steps of shared rows beside those of one process; ends the run where they differ by more than rounding."""
        alone = self.taken("alone", length, 1, compiled=False, steps=WARMUP + 1)
        for kind in ("context", "context-fsdp2"):
            shared = self.taken(kind, length, 1, compiled=False, steps=WARMUP + 1)
            pairs = (alone.losses, shared.losses), (alone.norms, shared.norms)
            apart = [max(abs(a - b) / abs(a) for a, b in zip(*pair, strict=True)) for pair in pairs]
            self.say(
                f"checked {kind} at {length}: losses apart by {apart[0]:.1e}, norms of gradients by {apart[1]:.1e}"
            )
            if not (apart[0] <= 5e-3 and apart[1] <= 5e-2):
                raise SystemExit(f"{kind} is wrong: nothing is timed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="m7c_125m_fast_log")
    parser.add_argument("--steps", default="ddp:1024:64,fsdp2:1024:64,ddp:16384:4,fsdp2:16384:4,context:131072:1")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--check", type=int, default=4096)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    asked = parser.parse_args()
    config = load_config(asked.config)
    with joined(120.0, asked.device) as world:
        device = device_of(asked.device, world)
        bench = Bench(config, world, device)
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        bench.say(f"{world.size} x {name}, torch {torch.__version__}, {asked.config}")
        bench.check(asked.check)
        bench.say("kind              S  rows mode      alone ms   ms  times as fast  alone GiB   GiB   tokens/s")
        alone: dict[tuple[int, int, bool], Taken] = {}
        for step in asked.steps.split(","):
            kind, length, rows = step.split(":")[0], *(int(part) for part in step.split(":")[1:])
            for mode in asked.modes.split(","):
                key = length, rows, mode == "compiled"
                if key not in alone:
                    alone[key] = bench.taken("alone", length, rows, compiled=key[2])
                one, all_of_them = alone[key], bench.taken(kind, length, rows, compiled=key[2])
                more = 1 if kind.startswith("context") else world.size
                faster = more * one.seconds / all_of_them.seconds
                speed = more * rows * length / all_of_them.seconds
                times = f"{one.seconds * 1e3:9.1f} {all_of_them.seconds * 1e3:7.1f} {faster:10.2f}"
                gib = f"{one.gib:12.2f} {all_of_them.gib:7.2f}"
                bench.say(f"{kind:13s} {length:7d} {rows:4d} {mode:8s} {times} {gib} {speed:12,.0f}")


if __name__ == "__main__":
    main()
