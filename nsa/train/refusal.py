"""What happens to a step that is not finite: kept, traced if asked, and then the end of the run or a step left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nsa.data import Batch
from nsa.train.failures import NotFiniteError
from nsa.train.files import write_tensors
from nsa.train.moments import model_tensors
from nsa.train.monitors import Monitors
from nsa.train.nonfinite import NotFinite, keep_batches
from nsa.train.objective import num_targets
from nsa.train.optimizer import not_finite_gradients
from nsa.train.saving import History
from nsa.train.setup import Machinery
from nsa.train.tracer import Tracer, ask
from nsa.train.world import World

_MOST_SKIPPED_IN_A_ROW = 10
_MOST_KEPT = 3
_SECONDS_TO_TRACE = 1800.0


@dataclass(frozen=True)
class Refusal:
    """Called in place of the optimizer's step."""

    machinery: Machinery
    world: World
    monitors: Monitors
    folder: Path
    tracer: Tracer | None = None

    def refuse(
        self,
        history: History,
        step: int,
        batches: Sequence[Batch],
        losses: Sequence[float],
        norm: float,
        guilty_ranks: tuple[int, ...],
    ) -> None:
        """Raises NotFiniteError unless the step is to be skipped; `losses` are this process's, one a micro-batch."""
        config = self.machinery.config
        policy = config.train.on_nonfinite
        fault = NotFinite(
            step=step,
            losses=tuple(losses),
            gradient_norm=norm,
            parameters=tuple(not_finite_gradients(self.machinery.model)),
            guilty_ranks=guilty_ranks,
        )
        history.skipped.append(step)
        history.skipped_in_a_row += 1
        traced = self._traced_together(batches, step) if policy == "trace" else ""
        sentence = f"{fault.sentence()}{f'; {traced}' if traced else ''}"
        if policy != "skip" or len(history.skipped) <= _MOST_KEPT:
            place = keep_batches(self.folder, fault, batches, self.world.rank, traced, config)
            weights = model_tensors(self.machinery.model)
            if self.world.is_first:
                write_tensors(place / "model.safetensors", weights)
            sentence += f"; the weights are those before the step; --replay {place} computes it again"
        mean = sum(losses) / max(sum(num_targets(batch.documents) for batch in batches), 1)
        self.monitors.event(f"not finite: {sentence}", step, mean)
        if policy != "skip":
            raise NotFiniteError(f"stopped: {sentence}")
        if history.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
            raise NotFiniteError(f"stopped after {_MOST_SKIPPED_IN_A_ROW} skipped steps in a row: {sentence}")
        self.monitors.say(f"step {step:04d} | skipped: {sentence}")

    def _traced_together(self, batches: Sequence[Batch], step: int) -> str:
        """What the tracer of this process says, or that of the first process where it saw anything."""
        self.monitors.enter("tracing", step, _SECONDS_TO_TRACE)
        sentences = self.world.gather_objects(self._trace(batches))
        others = [f"on rank {rank} {each}" for rank, each in enumerate(sentences) if each and rank != self.world.rank]
        is_compiled = ", uncompiled" if self.machinery.config.runtime.compile else ""
        nothing = f"the tracer saw nothing that is not finite when the step was computed again{is_compiled}"
        return sentences[self.world.rank] or next(iter(others), nothing)

    def _trace(self, batches: Sequence[Batch]) -> str:
        """What the tracer says of the first micro-batch that it sees anything in; nothing where it sees nothing."""
        assert self.tracer is not None
        for batch in batches:

            def again(batch: Batch = batch) -> Tensor:
                return self.machinery.loss(batch.tokens, batch.documents)

            self.machinery.optimizer.zero_grad(set_to_none=True)
            sentence = ask(self.tracer, self.machinery.model, again)
            if sentence:
                return sentence
        return ""
