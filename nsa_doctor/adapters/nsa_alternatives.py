"""NSAttention layers with one layer's weights: other implementations, and other options."""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import nn

from nsa.backends import Impl, route
from nsa.config import NSAConfig
from nsa.nn import NSAttention
from nsa.strict import ConfigError


def twins(config: NSAConfig, device: str, dtype: str) -> Mapping[str, Callable[[int], nn.Module]]:
    """How to build the layer under every implementation that can serve there, by its name."""
    named = [impl for impl in get_args(Impl) if impl != "auto"]
    served = [impl for impl in named if not why_not(impl, device, dtype, max(config.d_k, config.d_v))]
    return {impl: lambda seed, impl=impl: _sharing(_layer(config, seed), config, impl) for impl in served}


def why_not(impl: Impl, device: str, dtype: str, head_size: int) -> str:
    """Why an implementation cannot serve there; nothing where it can."""
    try:
        route(torch.device(device), getattr(torch, dtype), head_size, impl)
    except ValueError as error:
        return str(error)
    return ""


def variants(config: NSAConfig, seed: int) -> Mapping[str, nn.Module]:
    """The layer with one option changed that needs no other weights: other results are expected."""
    own = _layer(config, seed)
    changes: dict[str, dict[str, Any]] = {
        "w": {"w": config.w // 4 or config.w + 3},
        "n_sel": {"n_sel": 3 if config.n_sel > 3 else 2 * config.n_sel},
        "l_sel": {"l_sel": 2 * config.l_sel},
        "d": {"d": config.d // 2},
        "l": {"l": config.l // 2},
        "gate": {"gate": "softmax" if config.gate == "sigmoid" else "sigmoid", "gate_temperature": 1.0},
        "gate_temperature": {"gate_temperature": 4 * config.gate_temperature},
        "rope_theta": {"rope_theta": 100 * config.rope_theta},
    }
    if config.phi != "avg":
        del changes["l"]  # the length of a block is a size of the weights
    if config.gate == "sigmoid":
        del changes["gate_temperature"]
    return {name: changed for name, change in changes.items() if (changed := _changed(own, config, change)) is not None}


def _changed(own: NSAttention, config: NSAConfig, change: Mapping[str, Any]) -> NSAttention | None:
    """None for a geometry that cannot be."""
    try:
        return _sharing(own, NSAConfig(**{**_values(config), **change}), "auto")
    except ConfigError:
        return None


def _values(config: NSAConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in NSAConfig.model_fields}


def _sharing(own: NSAttention, config: NSAConfig, impl: Impl) -> NSAttention:
    layer = NSAttention(config, impl)
    layer.load_state_dict(own.state_dict())
    return layer


def _layer(config: NSAConfig, seed: int) -> NSAttention:
    torch.manual_seed(seed)
    return NSAttention(config)
