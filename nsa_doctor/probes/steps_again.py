"""Computes steps of a run of nsa.train again from a checkpoint: the same model on the same rows, all else anew.

Nothing of `nsa.train` is used: the loss, the sum over micro-batches and processes, the norm, the clipping, AdamW
(arXiv 1711.05101) and the learning rate are written here a second time, plainly, the optimizer in float64.
"""

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from nsa.config import RunConfig, TrainConfig
from nsa.data import Batch, DataError
from nsa.nn import Transformer
from nsa.strict import ConfigError
from nsa_doctor.probes.rows_again import Rows, checksum
from nsa_doctor.runner import Caught
from nsa_doctor.runs.again import Again, EvaluationAgain, MoveAgain, StepAgain
from nsa_doctor.runs.declared import declared
from nsa_doctor.runs.record import RunRecord
from nsa_doctor.runs.schedules import due

_MOST_STEPS = 16  # between two checkpoints whose weights are compared
_EPSILON = 1e-8  # AdamW's, as torch has it where nothing else is said
_ROUNDING, _HALF_ROUNDING = 2.0**-23, 2.0**-8  # of a number in float32 and in bfloat16
_IGNORED = -100

Tensors = dict[str, Tensor]
Tell = Callable[[str], None]


class CannotBeComputedError(Exception):
    """Why a run offers no step that can be computed again."""


@dataclass(frozen=True)
class _Checkpoint:
    step: int
    path: Path

    def tensors(self, name: str, device: torch.device) -> Tensors:
        return load_file(self.path / f"{name}.safetensors", device=str(device))

    def rows(self) -> Rows:
        """The configuration, and where each process stands in its data."""
        state = json.loads((self.path / "state.json").read_bytes())
        return Rows(RunConfig(**state["config"]), tuple(each["data"] for each in state["processes"]))


@dataclass(frozen=True)
class _Weights:
    """Parameters by name, and AdamW's moments and counts; a parameter that never had a gradient has none of these."""

    values: Tensors
    moments: Tensors


@dataclass(frozen=True)
class _Course:
    """Losses and norms of steps, and where the weights ended."""

    losses: list[float]
    norms: list[float]
    moves: Tensors


def steps_again(
    folder: Path, evaluated: Collection[int] = (), device: str = "cpu", tell: Tell = lambda told: None
) -> Again:
    """The steps between the two checkpoints of a run that are nearest to each other; one step where none are near.

    evaluated: the steps whose held-out loss the run tells. Everything is computed twice, from the weights as they were
    and from weights that are rounded otherwise, and the difference is the noise of each number. Where it cannot be,
    `reason` of what is returned says why.
    """
    try:
        checkpoints = _checkpoints(folder)
        first, last = _stretch(checkpoints)
        retraced = _Retraced(first.rows(), _device(device), tell)
        again = retraced.steps(first, last)
        known = [each for each in checkpoints if each.step in evaluated]
        return replace(again, device=device, evaluations=tuple(retraced.evaluated(each) for each in known[-1:]))
    except (CannotBeComputedError, ConfigError, DataError) as error:
        return Again(reason=str(error))
    except (RuntimeError, MemoryError) as error:
        return Again(reason=f"computing them raised {Caught(error).sentence}")
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        return Again(reason=f"a checkpoint cannot be read: {type(error).__name__}: {error}")


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise CannotBeComputedError("there is no CUDA device here")
    return torch.device(name)


def _checkpoints(folder: Path) -> list[_Checkpoint]:
    paths = sorted((folder / "checkpoints").glob("step_*"))
    found = [_Checkpoint(int(path.name[5:]), path) for path in paths if path.name[5:].isdecimal()]
    if not found:
        raise CannotBeComputedError("the run holds no checkpoint of nsa.train")
    return found


def _stretch(found: Sequence[_Checkpoint]) -> tuple[_Checkpoint, _Checkpoint | None]:
    """The nearest neighbours, the last of them; or a checkpoint alone, the last one that was gone on from for sure."""
    pairs = list(itertools.pairwise(found))
    near = min(reversed(pairs), key=lambda pair: pair[1].step - pair[0].step, default=None)
    if near is not None and near[1].step - near[0].step <= _MOST_STEPS:
        return near
    return (found[-2] if len(found) > 1 else found[-1]), None


@dataclass
class _Retraced:
    """A run's model on its rows."""

    rows: Rows
    device: torch.device
    tell: Tell

    def __post_init__(self) -> None:
        config = self.rows.config
        self._model = Transformer(config.model, "flash" if config.runtime.use_flash else "auto").to(self.device)
        self._is_half = config.runtime.precision == "bf16"

    def steps(self, first: _Checkpoint, last: _Checkpoint | None) -> Again:
        """Those after `first`."""
        batches = list(self.rows.of_steps(last.step - first.step if last else 1))
        before, moments = self._weights(first), first.tensors("optimizer", self.device)
        course = self._course(_Weights(before, moments), first.step, batches)
        other = self._course(_Weights(self._jittered(before), moments), first.step, batches)
        steps = tuple(
            StepAgain(
                step=first.step + number + 1,
                batches=tuple(checksum(own[0].tokens) for own in of_step),
                loss=course.losses[number],
                loss_noise=abs(course.losses[number] - other.losses[number]),
                norm=course.norms[number],
                norm_noise=abs(course.norms[number] - other.norms[number]),
            )
            for number, of_step in enumerate(batches)
        )
        again = Again(first=first.step, steps=steps)
        if last is None:
            return again
        after = self._weights(last)
        moves = (
            _move(name, before[name], after[name], course.moves[name], other.moves[name], len(batches))
            for name in before
        )
        return replace(again, last=last.step, moves=tuple(moves))

    def evaluated(self, checkpoint: _Checkpoint) -> EvaluationAgain:
        """The held-out loss of its weights."""
        batches, weights = list(self.rows.held_out()), self._weights(checkpoint)
        count = max(sum(_num_targets(batch) for batch in batches), 1)
        losses = []
        for values in (weights, self._jittered(weights)):
            self._model.load_state_dict(values, strict=False)
            with torch.no_grad():
                losses.append(sum(float(part) for batch in batches for part in self._parts(batch)) / count)
            self.tell(f"the evaluation of step {checkpoint.step}")
        return EvaluationAgain(step=checkpoint.step, loss=losses[0], noise=abs(losses[1] - losses[0]))

    def _weights(self, checkpoint: _Checkpoint) -> Tensors:
        found = checkpoint.tensors("model", self.device)
        own = {name: each for name, each in self._model.named_parameters() if each.requires_grad}
        for name, parameter in own.items():
            if name not in found or found[name].shape != parameter.shape:
                raise CannotBeComputedError(
                    f"the checkpoint of step {checkpoint.step} does not hold the model's {name}"
                )
        return {name: found[name] for name in own}

    def _jittered(self, values: Tensors) -> Tensors:
        """Every weight off by at most half a rounding, up or down."""
        relative = _HALF_ROUNDING if self._is_half else _ROUNDING
        generator = torch.Generator().manual_seed(0)
        return {
            name: value * (1 + relative * (torch.rand(value.shape, generator=generator) - 0.5).to(value))
            for name, value in values.items()
        }

    def _course(self, start: _Weights, step: int, batches: Sequence[Sequence[Sequence[Batch]]]) -> _Course:
        weights, course = start, _Course([], [], {})
        config = self.rows.config
        for number, of_step in enumerate(batches, start=step + 1):
            self._model.load_state_dict(weights.values, strict=False)
            loss, gradients = self._gradients([batch for own in of_step for batch in own])
            norm = math.sqrt(sum(float(each.double().square().sum()) for each in gradients.values()))
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise CannotBeComputedError(f"step {number} is not finite when it is computed again")
            weights = _stepped(weights, gradients, norm, config.train, _rate(number, config))
            course.losses.append(loss)
            course.norms.append(norm)
            self.tell(f"step {number}")
        moves = {name: weights.values[name].double() - value.double() for name, value in start.values.items()}
        return replace(course, moves=moves)

    def _gradients(self, batches: Sequence[Batch]) -> tuple[float, Tensors]:
        """The mean loss over all targets of all processes, and its gradient; parameters that get none are left out."""
        count = sum(_num_targets(batch) for batch in batches)
        if count == 0:
            raise CannotBeComputedError("a step has nothing to predict")
        self._model.zero_grad(set_to_none=True)
        loss = 0.0
        for part in (part for batch in batches for part in self._parts(batch)):
            (part / count).backward()
            loss += float(part.detach()) / count
        return loss, {name: each.grad for name, each in self._model.named_parameters() if each.grad is not None}

    def _parts(self, batch: Batch) -> Iterator[Tensor]:
        """The summed loss of each row; a row at a time, so that the logits of a large vocabulary fit."""
        return map(self._summed, batch.tokens.to(self.device), _targets(batch).to(self.device))

    def _summed(self, row: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._is_half):
            logits = self._model(row[None, :-1])[0]
        return cross_entropy(logits.float(), targets, ignore_index=_IGNORED, reduction="sum")


def _targets(batch: Batch) -> Tensor:
    """The token after each; none where that one begins another document."""
    is_same = batch.documents[:, 1:] == batch.documents[:, :-1]
    return torch.where(is_same, batch.tokens[:, 1:], _IGNORED)


def _num_targets(batch: Batch) -> int:
    return int((_targets(batch) != _IGNORED).sum())


def _stepped(weights: _Weights, gradients: Tensors, norm: float, train: TrainConfig, rate: float) -> _Weights:
    """AdamW: matrices decay, what norms and biases are made of does not."""
    scale = min(1.0, train.grad_clip / norm) if train.grad_clip and norm > 0 else 1.0
    values, moments = dict(weights.values), dict(weights.moments)
    for name, gradient in gradients.items():
        wide, value = gradient.double() * scale, values[name].double()
        zero = torch.zeros_like(wide)
        mean = torch.lerp(wide, moments.get(f"{name}.exp_avg", zero).double(), train.beta1)
        square = torch.lerp(wide**2, moments.get(f"{name}.exp_avg_sq", zero).double(), train.beta2)
        count = float(moments.get(f"{name}.step", torch.tensor(0.0))) + 1
        decay = train.weight_decay if value.dim() > 1 else 0.0
        denominator = (square / (1 - train.beta2**count)).sqrt() + _EPSILON
        moved = value * (1 - rate * decay) - rate * (mean / (1 - train.beta1**count)) / denominator
        values[name] = moved.to(values[name].dtype)
        moments |= {f"{name}.exp_avg": mean, f"{name}.exp_avg_sq": square, f"{name}.step": torch.tensor(count)}
    return _Weights(values, moments)


def _rate(step: int, config: RunConfig) -> float:
    """As the configuration has it."""
    return due(step, declared(RunRecord(folder="", environment={"config": config.model_dump(mode="json")})))


def _move(name: str, before: Tensor, after: Tensor, again: Tensor, other: Tensor, num_steps: int) -> MoveAgain:
    told = after.double() - before.double()
    rounding = num_steps * _ROUNDING * float(before.double().norm())
    return MoveAgain(
        name=name,
        told=float(told.norm()),
        again=float(again.norm()),
        apart=float((told - again).norm()),
        noise=float((other - again).norm()) + rounding,
    )
