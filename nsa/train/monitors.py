"""Everything that watches a run and tells of it; with all of it or none, the run computes the same."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import torch

from nsa.config import RunConfig
from nsa.train.events import Events
from nsa.train.failures import CannotWriteError
from nsa.train.files import make_folder, write_whole
from nsa.train.heartbeat import Heartbeat
from nsa.train.memory import memory_in_use
from nsa.train.progress import Progress
from nsa.train.record import DepthRecord, GateRecord, StepRecord
from nsa.train.stacks import dump_stacks
from nsa.train.table import Table
from nsa.train.watchdog import Watchdog
from nsa.train.world import World

TRAINING = ("step", "loss", "lr", "grad_norm", "toks_per_s", "tokens", "seconds", "dt_fetch_s")
EVALUATIONS = ("step", "loss")
RETRIEVAL = ("step", "depth", "asked", "right")
GATES = ("step", "layer", "cmp", "sel", "win", "spread", "norm")


class Monitors:
    """Used as a context around the steps. `last_step` is the one the run goes on from."""

    def __init__(self, config: RunConfig, world: World, device: torch.device, folder: Path, last_step: int) -> None:
        self._config, self._device, self._folder = config, device, folder
        self.is_on = config.runtime.monitors
        self.writes_tables = self.is_on and world.is_first
        self._closing = ExitStack()
        self.progress = Progress(sys.stdout, config.train.steps, config.train.log_every) if world.is_first else None
        self._step, self._stage = last_step, "the start"
        self._heartbeat: Heartbeat | None = None
        self._watchdog: Watchdog | None = None
        self._retrieval: Table | None = None
        if self.is_on:
            self._heartbeat = Heartbeat(folder, world.rank, device)
            self._closing.callback(self._heartbeat.close)
            self._watchdog = Watchdog(config.train.watchdog_seconds, self.stalled)
        if self.writes_tables:
            self._training = Table(folder / "training.csv", TRAINING, last_step)
            self._evaluations = Table(folder / "evaluations.csv", EVALUATIONS, last_step)
            self._gates = Table(folder / "gates.csv", GATES, last_step)
            self._events = Events(folder / "tensorboard", last_step)
            for each in (self._training, self._evaluations, self._gates, self._events):
                self._closing.callback(each.close)

    def __enter__(self) -> "Monitors":
        if self._watchdog is not None:
            self._closing.enter_context(self._watchdog)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.progress is not None:
            self.progress.clear()
        self._closing.close()

    def enter(self, stage: str, step: int, seconds: float | None = None) -> None:
        """The run begins to do something that must not take longer than the watchdog's seconds, or these."""
        self._step, self._stage = step, stage
        if self._watchdog is not None:
            self._watchdog.enter(stage, seconds)

    def event(self, msg: str, step: int | None = None, loss: float | None = None, *, batch: str | None = None) -> None:
        """Something happened that a reader of the heartbeat has to know."""
        if self._heartbeat is not None:
            self._heartbeat.event(msg, step, loss, batch=batch)

    def say(self, text: str) -> None:
        """A line for the person who watches, of the first process."""
        if self.progress is not None:
            self.progress.say(text)

    def step(self, record: StepRecord) -> None:
        """A step was made."""
        if self._heartbeat is not None:
            self._heartbeat.step(record)
        if self.writes_tables:
            self._training.add(
                record.step,
                record.loss,
                record.learning_rate,
                record.gradient_norm,
                record.tokens_per_second,
                record.tokens,
                record.seconds,
                record.fetch_seconds,
            )
            if record.step % self._config.train.log_every == 0:
                values = {"train/loss": record.loss, "train/lr": record.learning_rate}
                values |= {"train/grad_norm": record.gradient_norm, "train/toks_per_s": record.tokens_per_second}
                self._events.add(record.step, values)
        if self.progress is not None:
            self.progress.step(record, memory_in_use(self._device))

    def evaluated(self, step: int, loss: float, batch: str) -> None:
        """The held-out rows were looked at; `batch` is the `checksum` of this process's first ones."""
        self.event("evaluated", step, batch=batch)
        if self.writes_tables:
            self._evaluations.add(step, loss)
            self._events.add(step, {"held_out/loss": loss})
        self.say(f"step {step:04d} | held-out loss {loss:.4f}")

    def answered(self, records: Sequence[DepthRecord]) -> None:
        """Questions about needles were asked."""
        if not records:
            return
        if self.writes_tables:
            if self._retrieval is None:
                self._retrieval = Table(self._folder / "retrieval.csv", RETRIEVAL, records[0].step - 1)
                self._closing.callback(self._retrieval.close)
            for each in records:
                self._retrieval.add(each.step, each.depth, each.asked, each.right)
                self._events.add(each.step, {f"needles/from_{each.depth}": each.right / each.asked})
        shares = ", ".join(f"{100 * each.right / each.asked:.0f} % from {each.depth:g}" for each in records)
        self.say(f"step {records[0].step:04d} | needles found by depth (0 is the start): {shares}")

    def gates(self, records: Sequence[GateRecord]) -> None:
        """The gates were looked at."""
        if self.writes_tables:
            for each in records:
                shares = {"cmp": each.compressed, "sel": each.selected, "win": each.sliding}
                self._gates.add(each.step, each.layer, *shares.values(), each.spread, each.norm)
                self._events.add(each.step, {f"gates/{each.layer}.{name}": share for name, share in shares.items()})

    def sampled(self, step: int, prompt: Sequence[int], continuation: Sequence[int], text: str, seconds: float) -> None:
        """The model wrote something, and how long it took, the prompt's pass included."""
        speed = len(continuation) / seconds
        self.say(f"step {step:04d} | sample of {len(continuation)} tokens at {speed:,.0f} tokens/s")
        if self.writes_tables:
            make_folder(self._folder / "samples")
            facts = {"step": step, "prompt": list(prompt), "continuation": list(continuation), "text": text}
            facts["tokens_per_second"] = round(speed, 1)
            write_whole(self._folder / "samples" / f"step_{step:08d}.json", json.dumps(facts) + "\n")

    def stacks(self, why: str) -> Path | None:
        """stackdump_<ts>.txt, and where the run stands."""
        return dump_stacks(self._folder, "stackdump", f"{why}, in {self._stage} of step {self._step}")

    def stalled(self, stage: str, seconds: float) -> None:
        """Something takes longer than it may: watchdog_stackdump_<ts>.txt; called from the watchdog's thread too."""
        if not self.is_on:
            return
        step, why = self._step, f"{stage} of step {self._step} has taken {seconds:.1f} s"
        path = dump_stacks(self._folder, "watchdog_stackdump", f"{why}, at {time.time():.3f}")
        with suppress(CannotWriteError):  # the step itself will meet it
            self.event(f"stalled: {why}; stacks in {path.name if path else 'no file, none could be written'}", step)
