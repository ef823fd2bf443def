"""A step that was not finite, computed again from what `nonfinite_step_<n>` holds."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nsa import ConfigError
from nsa.config import RunConfig
from nsa.train.failures import RefusedError
from nsa.train.moments import load_model_tensors
from nsa.train.optimizer import gradient_norm, not_finite_gradients
from nsa.train.setup import Machinery, build, device_of, device_type
from nsa.train.tracer import Tracer, ask, installed_tracer
from nsa.train.world import World

_MOST_NAMES = 5


def replay(folder: Path, tracer: Tracer | None = None) -> Iterator[str]:
    """A line for each micro-batch: loss, norm of the gradient, and what the tracer says where one is not finite.

    Raises RefusedError for a folder that holds no such step.
    """
    facts = _facts(folder)
    try:
        config = RunConfig(**facts["config"])
    except (ConfigError, KeyError, TypeError) as error:
        raise RefusedError(f"{folder}: step_rank*.json holds no configuration: {error}") from error
    machinery = build(config, World(), device_of(device_type(config), World()))
    batches = _tensors(folder / f"batch_rank{facts.get('rank', 0)}.safetensors")
    try:
        load_model_tensors(machinery.model, _tensors(folder / "model.safetensors"))
        pairs = list(zip(batches["tokens"], batches["documents"], strict=True))
    except (KeyError, ValueError) as error:
        raise RefusedError(f"{folder}: does not fit its configuration: {error}") from error
    tracer = tracer or installed_tracer()
    for index, (tokens, documents) in enumerate(pairs):
        yield f"micro-batch {index}: {_described(machinery, tokens, documents, tracer)}"


def _described(machinery: Machinery, tokens: Tensor, documents: Tensor, tracer: Tracer | None) -> str:
    def compute() -> Tensor:
        return machinery.loss(tokens, documents)

    machinery.optimizer.zero_grad(set_to_none=True)
    loss = compute()
    loss.backward()
    norm = float(gradient_norm(machinery.model.parameters()))
    text = f"loss {loss.item():.6g}, gradient norm {norm:.6g}"
    if math.isfinite(norm) and bool(loss.isfinite()):
        return text
    names = not_finite_gradients(machinery.model)
    text += f", not finite in {', '.join(names[:_MOST_NAMES])}{' …' if names[_MOST_NAMES:] else ''}" if names else ""
    machinery.optimizer.zero_grad(set_to_none=True)
    return text if tracer is None else f"{text}; {ask(tracer, machinery.model, compute) or 'the tracer saw nothing'}"


def _facts(folder: Path) -> dict[str, Any]:
    found = sorted(folder.glob("step_rank*.json")) if folder.is_dir() else []
    if not found:
        raise RefusedError(f"{folder}: holds no step_rank0.json; give a folder nonfinite_step_<n> of a run")
    try:
        facts = json.loads(found[0].read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"{found[0]}: cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise RefusedError(f"{found[0]}: is not a JSON object")
    return facts


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RefusedError(f"{path}: cannot be read: {error}") from error
