"""From our weights and checkpoints to a model of transformers and back, bit for bit: only names change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsa.config import ModelConfig, RunConfig, load_config
from nsa.hf.configuration import NSAConfig
from nsa.hf.modeling import NSAForCausalLM
from nsa.nn import Transformer
from nsa.strict import shown
from nsa.train.checkpoint import read_checkpoint, standing
from nsa.train.weights import read_weights

_HEAD, _THEIR_HEAD, _BODY = "head.weight", "lm_head.weight", "model.transformer."


def from_transformer(model: Transformer, **others: Any) -> NSAForCausalLM:
    """The same model with a copy of its weights; `others` are fields of NSAConfig such as pad_token_id."""
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return _built(tensors, model.config, others).train(model.training)


def to_transformer(model: NSAForCausalLM) -> Transformer:
    """The same model with a copy of its weights, which `nsa.generate` and `nsa.train` take."""
    with torch.device("meta"):
        transformer = Transformer(model.config.model_config(), model.model.impl)
    _load(transformer, {name: tensor.clone() for name, tensor in transformer_tensors(model).items()})
    return transformer.train(model.training)


def transformer_tensors(model: NSAForCausalLM) -> dict[str, Tensor]:
    """Its weights under the names that they have in a `Transformer`: what `nsa.train` resumes from, once saved."""
    theirs = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        theirs.pop(_THEIR_HEAD, None)
    return {_HEAD if name == _THEIR_HEAD else name.removeprefix(_BODY): tensor for name, tensor in theirs.items()}


def from_checkpoint(
    path: str | Path, config: ModelConfig | RunConfig | str | Path | None = None, **others: Any
) -> NSAForCausalLM:
    """The model of a checkpoint of `nsa.train` (the folder `step_…`), or of a file of weights (`.safetensors`, `.pt`).

    config: what a file of weights is of, also by the name of a configuration; a checkpoint has its own. `others` as in
    `from_transformer`. Raises UnreadableError, RefusedError or ValueError for what cannot be read or does not fit.
    """
    path = Path(path)
    if path.is_dir() or not path.suffix:
        if config is not None:
            raise ValueError(f"config must be left out for a checkpoint, which has its own, got {shown(config)}")
        snapshot = read_checkpoint(standing(path))
        return _built(snapshot.model, ModelConfig(**snapshot.state["config"]["model"]), others)
    if config is None:
        raise ValueError(f"config must be given with a file of weights, which has none: {path}")
    chosen = load_config(config) if isinstance(config, (str, Path)) else config
    return _built(read_weights(path), chosen.model if isinstance(chosen, RunConfig) else chosen, others)


def _built(tensors: Mapping[str, Tensor], config: ModelConfig, others: Mapping[str, Any]) -> NSAForCausalLM:
    """A model that takes these very tensors as its weights."""
    with torch.device("meta"):
        model = NSAForCausalLM(NSAConfig.from_model_config(config, **others))
    theirs = {_THEIR_HEAD if name == _HEAD else f"{_BODY}{name}": tensor for name, tensor in tensors.items()}
    if config.tie_embeddings and f"{_BODY}embedding.weight" in theirs:
        theirs[_THEIR_HEAD] = theirs[f"{_BODY}embedding.weight"]
    _load(model, theirs)
    model.tie_weights()
    model.config.dtype = model.dtype
    return model.eval()


def _load(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    own = model.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors or name not in own:
            raise ValueError(f"the weights {'lack' if name in own else 'have, beyond the configuration,'} {name}")
        if tensors[name].shape != own[name].shape:
            raise ValueError(f"{name} must have shape {list(own[name].shape)}, got {list(tensors[name].shape)}")
    model.load_state_dict(dict(tensors), assign=True)
