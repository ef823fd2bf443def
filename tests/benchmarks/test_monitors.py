"""What watching a run costs: all monitors of a step beside the step itself, of the showcase on a CPU.

    make bench

Heartbeat, tables, watchdog and progress are counted at every step, a look at the gates once in `log_every`.
"""

import io
import sys
import time
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from nsa.config import RunConfig, load_config, with_changes
from nsa.train.gates import look_at_gates
from nsa.train.monitors import Monitors
from nsa.train.objective import Objective
from nsa.train.record import StepRecord, checksum
from nsa.train.setup import Machinery, build
from nsa.train.world import World

ROUNDS = 40
CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return with_changes(load_config("train_showcase"), ["runtime.device=cpu", f"train.out_dir={tmp_path}"])


@pytest.fixture
def machinery(config: RunConfig) -> Machinery:
    return build(config, World(), CPU)


def seconds_of_a_step(machinery: Machinery, tokens: torch.Tensor) -> float:
    """The fastest of a few, forward to optimizer."""
    found = []
    for _ in range(8):
        start = time.perf_counter()
        machinery.called(tokens, torch.zeros_like(tokens)).backward()
        machinery.optimizer.step()
        machinery.optimizer.zero_grad(set_to_none=True)
        found.append(time.perf_counter() - start)
    return min(found)


def seconds_of_a_look(objective: Objective, row: torch.Tensor) -> float:
    found = []
    for step in range(8):
        start = time.perf_counter()
        look_at_gates(objective, row, step)
        found.append(time.perf_counter() - start)
    return min(found)


def test_monitors_beside_a_step(
    benchmark: BenchmarkFixture,
    config: RunConfig,
    machinery: Machinery,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = torch.randint(0, 256, (config.train.batch_size, config.train.seq_len + 1))
    step, look = seconds_of_a_step(machinery, tokens), seconds_of_a_look(machinery.objective, tokens[:1])
    record = StepRecord(
        step=1,
        loss=1.0,
        learning_rate=1e-3,
        gradient_norm=1.0,
        tokens=1024,
        seconds=0.1,
        fetch_seconds=0.0,
        batch=checksum(tokens),
    )
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with Monitors(config, World(), CPU, tmp_path, 0) as monitors:

        def watch() -> None:
            monitors.enter("waiting for a batch", 1)
            monitors.enter("forward and backward", 1)
            monitors.step(record)

        benchmark.pedantic(watch, rounds=ROUNDS, iterations=10, warmup_rounds=2)
    watched = benchmark.stats.stats.median + look / config.train.log_every
    benchmark.extra_info.update(step_seconds=step, monitors_seconds=watched, ratio=watched / step)
    monkeypatch.undo()
    with capsys.disabled():
        print(f"\nmonitors / step = {100 * watched / step:.2f} % ({1e6 * watched:.0f} us of {1e3 * step:.1f} ms)")
