"""The steps of a run: fetch, forward, backward, look, and only then let the optimizer touch the weights."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from nsa.data import Batch, LoaderStalledError
from nsa.train.failures import OutOfDataError, StoppedError, TrainError
from nsa.train.feed import Feed
from nsa.train.looks import Looks
from nsa.train.monitors import Monitors
from nsa.train.objective import num_targets
from nsa.train.optimizer import clip_gradients, gradient_norm, learning_rate_of, set_learning_rate
from nsa.train.record import StepRecord, checksum
from nsa.train.refusal import Refusal
from nsa.train.saving import History, save
from nsa.train.schedule import learning_rate
from nsa.train.setup import Machinery, explaining_memory
from nsa.train.signals import Signals
from nsa.train.spread import accumulating, require_equal_copies
from nsa.train.world import World

SECONDS_TO_COMPILE = 1800.0


@dataclass(frozen=True)
class Loop:
    """What the steps of a run work on."""

    machinery: Machinery
    feed: Feed
    world: World
    monitors: Monitors
    looks: Looks
    signals: Signals
    refusal: Refusal
    folder: Path
    history: History = field(default_factory=History)

    def run(self, first_step: int) -> None:
        """All steps from `first_step` to the last; raises a TrainError where that is not to be."""
        train = self.machinery.config.train
        for step in range(first_step, train.steps + 1):
            record, must_stop = self._step(step, is_first=step == first_step)
            self.history.add(record)
            self.monitors.step(record)
            self._after(step)
            if must_stop:
                self._save(step)
                number = max(int(each[0]) for each in self.world.gather([float(self.signals.requested)]))
                stopped = StoppedError(number, "")
                raise StoppedError(
                    number, f"stopped by {stopped.name} after step {step}, and saved: go on with --resume auto"
                )
            if step == train.steps or (train.save_every and step % train.save_every == 0):
                self._save(step)

    def _step(self, step: int, *, is_first: bool) -> tuple[StepRecord, bool]:
        """One optimizer step, and whether a process was asked to stop."""
        began = time.perf_counter()
        self.monitors.enter("waiting for a batch", step)
        batches = self._fetch()
        fetched = time.perf_counter()
        slow = SECONDS_TO_COMPILE if is_first and self.machinery.config.runtime.compile else None
        self.monitors.enter("forward and backward", step, slow)
        own = sum(num_targets(each.documents) for each in batches)
        count = int(self.world.total_of_rows([float(own)])[0])
        if count == 0:
            raise OutOfDataError(f"the batch of step {step} has nothing to predict: every document in it is one token")
        left = [name for name, each in self.machinery.model.named_parameters() if each.grad is not None]
        if left:
            raise TrainError(
                f"step {step} begins with the gradient of an earlier one in {left[0]} and {len(left) - 1} more: "
                "the optimizer does not hold them, or does not clear them"
            )
        with explaining_memory(self.machinery.config):
            sums = self._backward(batches, count)
        norm = gradient_norm(self.machinery.model.parameters())
        losses = [float(each) for each in torch.stack(sums).tolist()]
        gathered = self.world.gather([sum(losses), float(norm), float(self.signals.requested)])
        loss = sum(each[0] for each in gathered) / count
        set_learning_rate(self.machinery.optimizer, learning_rate(step, self.machinery.config.train))
        if math.isfinite(loss) and all(math.isfinite(each[1]) for each in gathered):
            clip_gradients(self.machinery.model.parameters(), self.machinery.config.train.grad_clip, norm)
            self.machinery.optimizer.step()
            self.history.skipped_in_a_row = 0
        else:
            guilty = tuple(rank for rank, each in enumerate(gathered) if not math.isfinite(each[0]))
            named = guilty if self.world.size > 1 else ()
            self.refusal.refuse(self.history, step, batches, losses, float(norm), named)
        self.machinery.optimizer.zero_grad(set_to_none=True)
        now = time.perf_counter()
        record = StepRecord(
            step=step,
            loss=loss,
            learning_rate=learning_rate_of(self.machinery.optimizer),
            gradient_norm=float(norm),
            tokens=self.world.num_readers * sum(each.tokens[:, 1:].numel() for each in batches),
            seconds=now - began,
            fetch_seconds=fetched - began,
            batch=checksum(self._own(batches[0].tokens)),
        )
        return record, any(each[2] for each in gathered)

    def _fetch(self) -> list[Batch]:
        """The micro-batches of a step; a loader that stalls leaves the stacks before it ends the run."""
        try:
            return self.feed.step()
        except OutOfDataError as error:
            if isinstance(error.__cause__, LoaderStalledError):
                self.monitors.stalled("waiting for a batch", error.__cause__.seconds)
            raise

    def _backward(self, batches: Sequence[Batch], count: int) -> list[Tensor]:
        """Gradients of the mean over `count` targets of all processes; returns the summed loss of each micro-batch.

        What spreads the model over processes averages their gradients, hence the factor.
        """
        sums = []
        for index, batch in enumerate(batches):
            with accumulating(self.machinery.called, is_last=index == len(batches) - 1):
                with self.machinery.precision():
                    loss = self.machinery.called(*self._on_device(batch))
                (loss * (self.world.size / count)).backward()
            sums.append(loss.detach())
        return sums

    def _own(self, tokens: Tensor) -> Tensor:
        """What this process alone reads of rows; those of its group are the same."""
        context = self.machinery.objective.context
        return tokens if context is None else context.own(tokens[:, :-1])

    def _on_device(self, batch: Batch) -> tuple[Tensor, Tensor]:
        device = self.machinery.device
        return batch.tokens.to(device, non_blocking=True), batch.documents.to(device, non_blocking=True)

    def _after(self, step: int) -> None:
        """What is due every so many steps."""
        config = self.machinery.config
        every = config.runtime.compare_ranks_every
        if every and (step % every == 0 or step == config.train.steps):
            require_equal_copies(self.machinery.model, self.world, step)
        is_last = step == config.train.steps
        if step % config.train.log_every == 0 or is_last:
            self.monitors.enter("looking at the gates", step)
            self.looks.at_gates(step)
        if is_last or (config.train.eval_every and step % config.train.eval_every == 0):
            self.monitors.enter("evaluation", step)
            self.looks.at_held_out(step, self.history)

    def _save(self, step: int) -> None:
        self.monitors.enter("saving a checkpoint", step)
        path = save(self.machinery, self.feed, self.world, self.history, self.folder, step)
        self.monitors.event(f"saved {path.name}", step)
