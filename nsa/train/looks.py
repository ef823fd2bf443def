"""Looks at a model between steps: held-out loss, gates, samples. None of them changes what the next step computes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

import torch

from nsa.data import Batch
from nsa.train.evaluate import held_out_loss, write_on
from nsa.train.gates import look_at_gates
from nsa.train.monitors import Monitors
from nsa.train.record import checksum
from nsa.train.retrieval import answers_by_depth
from nsa.train.saving import History
from nsa.train.setup import Machinery, explaining_memory
from nsa.train.spread import whole
from nsa.train.world import World

Decode = Callable[[Sequence[int]], str]


class Looks:
    """`held_out` are this process's batches; without any, gates are looked at on a row of a fixed pattern."""

    def __init__(
        self, machinery: Machinery, world: World, monitors: Monitors, held_out: Sequence[Batch], *, decode: Decode
    ) -> None:
        self._machinery, self._world, self._monitors, self._held_out = machinery, world, monitors, held_out
        self._decode = decode
        self._asks = any(batch.answers is not None for batch in held_out)
        config = machinery.config
        pattern = torch.arange(config.train.seq_len + 1)[None] % config.model.vocab_size
        self._row = (held_out[0].tokens[:1] if held_out else pattern).to(machinery.device)

    def at_gates(self, step: int) -> None:
        """One forward pass of one row."""
        if not self._monitors.is_on:
            return
        with self._machinery.precision(), self._eagerly():
            records = look_at_gates(self._machinery.objective, self._row, step)
        self._monitors.gates(records)

    def at_held_out(self, step: int, history: History) -> None:
        """The loss on all held-out batches, and a sample."""
        if not self._held_out:
            return
        machinery = self._machinery
        machinery.called.eval()
        with explaining_memory(machinery.config), machinery.precision():
            loss = held_out_loss(machinery.objective, self._held_out, self._world, machinery.device)
        with whole(machinery.objective), machinery.precision():
            depths = answers_by_depth(machinery.model, self._held_out, self._world, step) if self._asks else []
        machinery.called.train()
        history.held_out[step] = loss
        self._monitors.evaluated(step, loss, checksum(self._held_out[0].tokens))
        self._monitors.answered(depths)
        history.answered = {str(each.depth): each.right / each.asked for each in depths}
        num_tokens = machinery.config.train.sample_tokens
        if num_tokens and self._monitors.is_on:
            with whole(machinery.objective), machinery.precision(), self._eagerly():
                seed, start = machinery.config.train.seed + step, perf_counter()
                prompt, continuation = write_on(machinery.model, self._held_out[0], num_tokens, seed)
                seconds = perf_counter() - start
            self._monitors.sampled(step, prompt, continuation, self._decode(continuation), seconds)

    def _eagerly(self) -> AbstractContextManager[None]:
        """Odd shapes are not worth compiling for."""
        return torch.compiler.set_stance("force_eager") if self._machinery.config.runtime.compile else nullcontext()
