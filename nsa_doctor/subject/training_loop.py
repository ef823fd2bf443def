"""A training loop as a whole, as its owner hands it over: many micro-batches, evaluation, snapshots."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_MOST_KEPT = 4


@dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """A loop before its first step, around one module, with an optimizer of its own.

    step(batches): one step of the optimizer on one or more micro-batches, each such as the module takes ([B, S, width],
    or ids [B, S]); its loss. What is left out of the rest is not examined. evaluate(batches): the loss on held-out
    batches. snapshot(): all that going on needs, as it would be written to a file; restore(snapshot): go on from there,
    in a loop that has taken no step.

    Raises TypeError for what cannot be called, and ValueError for a restore without a snapshot.
    """

    step: Callable[[list[Tensor]], Any]
    evaluate: Callable[[list[Tensor]], Any] | None = None
    snapshot: Callable[[], Any] | None = None
    restore: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("step", "evaluate", "snapshot", "restore"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "step"):
                raise TypeError(f"{name} of a TrainingLoop must be callable, got {type(value).__name__}")
        if self.restore is not None and self.snapshot is None:
            raise ValueError("restore of a TrainingLoop needs a snapshot")


class StepOfLoop:
    """`train_step` of a subject that offers a loop: the first step begins one around the module, later ones go on.

    The optimizer that it is handed stays as it is. A batch of an even number of rows is given as two micro-batches.
    """

    def __init__(self, begin: Callable[[nn.Module], TrainingLoop]) -> None:
        self._begin = begin
        self._begun: dict[int, tuple[nn.Module, TrainingLoop]] = {}

    def __call__(self, module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Any:
        kept, loop = self._begun.get(id(module), (None, None))
        if kept is not module or loop is None:
            loop = self._begin(module)
            while len(self._begun) >= _MOST_KEPT:
                del self._begun[next(iter(self._begun))]
            self._begun[id(module)] = module, loop
        return loop.step(list(x.chunk(2)) if len(x) % 2 == 0 else [x])

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Whose place is named where a finding has none: the step of the loop begun last, else what begins one."""
        return next((loop.step for _, loop in reversed(self._begun.values())), self._begin)
