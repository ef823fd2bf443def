"""What an optimizer and random generators remember, as tensors by name, and back again."""

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from nsa.train.spread import gathered, shared_out


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, whole, in a copy; all processes have to ask."""
    return {name: gathered(value.detach()).clone() for name, value in model.state_dict().items()}


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError, naming the first of them, for tensors that are missing, unknown or of another shape."""
    own = model.state_dict()
    for name in own.keys() | tensors.keys():
        if name not in tensors or name not in own:
            raise ValueError(f"{'lacks' if name in own else 'has no use for'} {name}")
        if tensors[name].shape != own[name].shape:
            raise ValueError(f"has {name} of shape {list(tensors[name].shape)}, not {list(own[name].shape)}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(shared_out(tensors[name].to(value.dtype), value))


def optimizer_tensors(optimizer: AdamW, model: nn.Module) -> dict[str, Tensor]:
    """`blocks.0.….exp_avg` and so on; a parameter that never had a gradient has none."""
    return {
        f"{name}.{kind}": gathered(value.detach()).clone()
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: AdamW, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError for a tensor that belongs to no parameter."""
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        name, _, kind = full_name.rpartition(".")
        if name not in parameters:
            raise ValueError(f"has no use for {full_name}")
        parameter = parameters[name]
        is_count = kind == "step"
        kept = value.to(parameter.device if optimizer.defaults["fused"] else "cpu") if is_count else None
        optimizer.state[parameter][kind] = shared_out(value, parameter) if kept is None else kept


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """Of torch's generators."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def random_scalars() -> list[Any]:
    """Of Python's generator, as JSON holds it."""
    version, numbers, gauss = random.getstate()
    return [version, list(numbers), gauss]


def load_random(tensors: Mapping[str, Tensor], scalars: list[Any], device: torch.device) -> None:
    """Go on drawing where the run left off."""
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
    version, numbers, gauss = scalars
    random.setstate((version, tuple(numbers), gauss))
