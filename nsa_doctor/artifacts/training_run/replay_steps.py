"""Computes steps of a run of nsa.train again from a checkpoint: the same model on the same rows, all else independent.

Nothing of `nsa.train` is used: the loss, the sum over micro-batches and processes, the norm, the clipping, AdamW
(arXiv 1711.05101) and the learning rate are written here a second time, plainly, the optimizer in float64.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from nsa_doctor.artifacts.training_run.declared import declared
from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.replay_result import Replay, ReplayedEvaluation, ReplayedMove, ReplayedStep
from nsa_doctor.artifacts.training_run.replay_rows import Rows, checksum
from nsa_doctor.artifacts.training_run.schedules import due
from nsa_doctor.core.errors import Caught

_MOST_STEPS = 16  # between two checkpoints whose weights are compared
_EPSILON = 1e-8  # AdamW's, as torch has it where nothing else is said
_ROUNDING, _HALF_ROUNDING = 2.0**-23, 2.0**-8  # of a number in float32 and in bfloat16
_IGNORED = -100
_NAME = re.compile(r"step_(\d{8,18})")

Tensors = dict[str, Tensor]
Tell = Callable[[str], None]


class CannotBeComputedError(Exception):
    """Why a run offers no step that can be computed again."""


@dataclass(frozen=True)
class _Checkpoint:
    step: int
    path: Path

    def tensors(self, name: str, device: torch.device) -> Tensors:
        try:
            return load_file(self.path / f"{name}.safetensors", device=str(device))
        except (OSError, SafetensorError) as error:
            raise self._unreadable(error) from error

    def rows(self) -> Rows:
        """The configuration, and where each process stands in its data."""
        try:
            state = json.loads((self.path / "state.json").read_bytes())
            config, processes = dict(state["config"]), [dict(each["data"]) for each in state["processes"]]
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise self._unreadable(error) from error
        return Rows(RunConfig(**config), tuple(processes))

    def rate(self) -> float:
        """Of the first step after it."""
        return _rate(self.step + 1, self.rows().config)

    def _unreadable(self, error: Exception) -> CannotBeComputedError:
        return CannotBeComputedError(f"{self.path.name} cannot be read: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Weights:
    """Parameters by name, and AdamW's moments and counts; a parameter that never had a gradient has none of these."""

    values: Tensors
    moments: Tensors


@dataclass(frozen=True)
class _Pass:
    """The mean loss, what each target adds to it, and its gradient; parameters that get none are left out."""

    loss: float
    parts: Tensor
    gradients: Tensors

    @property
    def norm(self) -> float:
        return _norm(self.gradients.values())


def steps_again(
    folder: Path, evaluated: Collection[int] = (), device: str = "cpu", tell: Tell = lambda text: None
) -> Replay:
    """The steps between the two checkpoints of a run that are nearest to each other; one step where none are near.

    evaluated: the steps whose held-out loss the run tells. Everything is computed twice, from the weights as they were
    and from weights that are rounded otherwise, and the difference is the noise of each number. Where it cannot be,
    `reason` of what is returned says why.
    """
    try:
        checkpoints = _checkpoints(folder)
        first, last = _stretch(checkpoints)
        replay = _Retraced(first.rows(), _device(device), tell).steps(first, last)
        known = [each for each in checkpoints if each.step in evaluated][-1:]
        evaluations = (_Retraced(each.rows(), _device(device), tell).evaluated(each) for each in known)
        return replace(replay, device=device, evaluations=tuple(evaluations))
    except (CannotBeComputedError, ConfigError, DataError) as error:
        return Replay(reason=str(error))
    except (RuntimeError, MemoryError, ValueError, TypeError, ArithmeticError) as error:
        return Replay(reason=f"making them raised {Caught(error).sentence}")


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise CannotBeComputedError("there is no CUDA device here")
    return torch.device(name)


def _checkpoints(folder: Path) -> list[_Checkpoint]:
    paths = (folder / "checkpoints").glob("step_*")
    found = [_Checkpoint(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
    if not found:
        raise CannotBeComputedError("the run holds no checkpoint of nsa.train")
    return sorted(found, key=lambda each: each.step)


def _stretch(found: Sequence[_Checkpoint]) -> tuple[_Checkpoint, _Checkpoint | None]:
    """The nearest neighbours, at the highest rate of these; or one alone, the last that was gone on from for sure."""
    gaps = {other.step - one.step for one, other in itertools.pairwise(found)}
    if not gaps or min(gaps) > _MOST_STEPS:
        return (found[-2] if len(found) > 1 else found[-1]), None
    near = (pair for pair in itertools.pairwise(found) if pair[1].step - pair[0].step == min(gaps))
    return max(near, key=lambda pair: pair[0].rate())


@dataclass
class _Retraced:
    """A run's model on its rows."""

    rows: Rows
    device: torch.device
    tell: Tell

    def __post_init__(self) -> None:
        config = self.rows.config
        self._is_half = config.runtime.precision == "bf16"
        if self._is_half and config.runtime.distributed == "fsdp2" and len(self.rows.positions) > 1:
            raise CannotBeComputedError("fsdp2 in bf16 rounds the weights themselves, which is not done here")
        self._model = Transformer(config.model, "flash" if config.runtime.use_flash else "auto").to(self.device)

    def steps(self, first: _Checkpoint, last: _Checkpoint | None) -> Replay:
        """Those after `first`."""
        before, moments = self._weights(first), first.tensors("optimizer", self.device)
        starts = (before, self._jittered(before))
        weights, other = (_Weights(values, moments) for values in starts)
        steps = []
        for number, batches in enumerate(self.rows.of_steps(last.step - first.step if last else 1), first.step + 1):
            own, weights = self._stepped(weights, batches, number)
            beside, other = self._stepped(other, batches, number)
            apart = [own.gradients[name] - beside.gradients[name] for name in own.gradients]
            steps.append(
                ReplayedStep(
                    step=number,
                    batches=tuple(checksum(of_process[0].tokens) for of_process in batches),
                    loss=own.loss,
                    loss_noise=_noise(own.parts, beside.parts),
                    norm=own.norm,
                    norm_noise=_norm(apart),
                )
            )
        replay = Replay(first=first.step, steps=tuple(steps))
        if last is None:
            return replay
        ways, others = (
            {name: end.values[name].double() - start[name] for name in start}
            for end, start in zip((weights, other), starts, strict=True)
        )
        after = self._weights(last)
        moves = (_move(name, before[name], after[name], ways[name], others[name], len(steps)) for name in before)
        return replace(replay, last=last.step, moves=tuple(moves))

    def evaluated(self, checkpoint: _Checkpoint) -> ReplayedEvaluation:
        """The held-out loss of its weights."""
        batches, weights = list(self.rows.held_out()), self._weights(checkpoint)
        count = max(sum(_num_targets(batch) for batch in batches), 1)
        found = []
        for values in (weights, self._jittered(weights)):
            self._model.load_state_dict(values, strict=False)
            with torch.no_grad():
                found.append(torch.cat([self._row(*row) for batch in batches for row in self._rows(batch)]) / count)
            self.tell(f"the evaluation of step {checkpoint.step}")
        return ReplayedEvaluation(step=checkpoint.step, loss=float(found[0].sum()), noise=_noise(*found))

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
        """Every weight off by at most a rounding, up or down."""
        relative = _HALF_ROUNDING if self._is_half else _ROUNDING
        generator = torch.Generator().manual_seed(0)
        off = {name: 2 * torch.rand(value.shape, generator=generator) - 1 for name, value in values.items()}
        return {
            name: (value.double() * (1 + relative * off[name].to(value.device).double())).to(value.dtype)
            for name, value in values.items()
        }

    def _stepped(self, weights: _Weights, batches: Sequence[Sequence[Batch]], step: int) -> tuple[_Pass, _Weights]:
        """One step of all processes, and the weights after it."""
        config = self.rows.config
        self._model.load_state_dict(weights.values, strict=False)
        made = self._pass([batch for own in batches for batch in own])
        if not (math.isfinite(made.loss) and math.isfinite(made.norm)):
            raise CannotBeComputedError(f"step {step} is not finite when it is computed again")
        self.tell(f"step {step}")
        return made, _stepped(weights, made, config.train, _rate(step, config))

    def _pass(self, batches: Sequence[Batch]) -> _Pass:
        count = sum(_num_targets(batch) for batch in batches)
        if count == 0:
            raise CannotBeComputedError("a step has nothing to predict")
        self._model.zero_grad(set_to_none=True)
        parts = []
        for row in (row for batch in batches for row in self._rows(batch)):
            part = self._row(*row) / count
            part.sum().backward()
            parts.append(part.detach())
        gradients = {name: each.grad for name, each in self._model.named_parameters() if each.grad is not None}
        losses = torch.cat(parts).double()
        return _Pass(float(losses.sum()), losses, gradients)

    def _rows(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens and targets, a row at a time, so that the logits of a large vocabulary fit."""
        return zip(batch.tokens.to(self.device), _targets(batch).to(self.device), strict=True)

    def _row(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """What each target of a row loses."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._is_half):
            logits = self._model(tokens[None, :-1])[0]
        return cross_entropy(logits.float(), targets, ignore_index=_IGNORED, reduction="none")


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in tensors))


def _noise(parts: Tensor, others: Tensor) -> float:
    """By how much a sum is off whose parts are off independently; not less than it was seen to be."""
    apart = parts.double() - others.double()
    return max(abs(float(apart.sum())), float(apart.norm()))


def _targets(batch: Batch) -> Tensor:
    """The token after each; none where that one begins another document."""
    is_same = batch.documents[:, 1:] == batch.documents[:, :-1]
    return torch.where(is_same, batch.tokens[:, 1:], _IGNORED)


def _num_targets(batch: Batch) -> int:
    return int((_targets(batch) != _IGNORED).sum())


def _stepped(weights: _Weights, made: _Pass, train: TrainConfig, rate: float) -> _Weights:
    """AdamW: matrices decay, what norms and biases are made of does not."""
    norm = made.norm
    scale = min(1.0, train.grad_clip / norm) if train.grad_clip and norm > 0 else 1.0
    values, moments = dict(weights.values), dict(weights.moments)
    for name, gradient in made.gradients.items():
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


def _move(name: str, before: Tensor, after: Tensor, replayed: Tensor, other: Tensor, num_steps: int) -> ReplayedMove:
    recorded = after.double() - before.double()
    rounding = num_steps * _ROUNDING * float(before.double().norm())
    return ReplayedMove(
        name=name,
        recorded=float(recorded.norm()),
        replayed=float(replayed.norm()),
        apart=float((recorded - replayed).norm()),
        noise=float((other - replayed).norm()) + rounding,
    )
