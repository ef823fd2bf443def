"""A small configuration of a model type: the values that its own class is given, sizes small, the rest as they are."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from nsa_doctor.adapters.hugging_face.small_sizes import is_count, is_key_value_heads, small_sizes

_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id")
_DECODING = {"is_decoder": True, "causal": True}  # where one class serves encoders too
FIRST_ORDINARY_TOKEN = len(_IDS)


def small_values(kind: Any, given: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """What a configuration class is to be called with, as plain data; what is `given` stays where it is no size.

    how: is_grouped, where two heads of queries share one of keys; times, how often each kind of layer is there; and
    is_narrow, where widths are made small too.
    """
    whole = kind(**given)
    changed: dict[str, Any] = dict(small_sizes(_chosen_values(whole, given), **how))
    for name, part in _parts_of(whole).items():
        within = given.get(name)
        values = small_values(type(part), within if isinstance(within, Mapping) else {}, **how)
        named = {"model_type": type(part).model_type} if getattr(type(part), "model_type", "") else {}
        changed[name] = named | values
    changed |= {name: 0.0 for name, value in vars(whole).items() if _is_drop_rate(name, value)}
    changed |= {name: index for index, name in enumerate(_IDS) if is_count(getattr(whole, name, None))}
    changed |= {name: value for name, value in _DECODING.items() if hasattr(whole, name)}
    return {**given, **changed}


def _chosen_values(config: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration holds, but for numbers that its class computes from others."""
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    declared = {each.name: each.default for each in fields(config)} if is_dataclass(config) else values
    computed = {name for name, value in values.items() if is_count(value) and not is_count(declared.get(name))}
    computed -= {name for name in computed if is_count(given.get(name)) or is_key_value_heads(name)}
    return {name: value for name, value in values.items() if name not in computed}


def _parts_of(config: Any) -> dict[str, Any]:
    """Configurations within a configuration, by their names."""
    held = ((name, getattr(config, name, None)) for name in getattr(type(config), "sub_configs", {}))
    return {name: part for name, part in held if part is not None}


def _is_drop_rate(name: str, value: Any) -> bool:
    is_named = any(word in name for word in ("dropout", "pdrop", "layerdrop", "drop_rate"))
    return is_named and isinstance(value, float) and value > 0
