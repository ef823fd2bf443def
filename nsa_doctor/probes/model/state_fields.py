"""Tensors and numbers in a structure of any make, by the path that leads to each, and how to put others there."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nsa_doctor.probes.internal import BUFFERS, MODULES, REGISTRIES, registered
from nsa_doctor.probes.model.module_state import attributes_of, is_own, slots_of

_DEEPEST, _MOST_ITEMS = 12, 4096
_NUMBERS = (bool, int, float)

Value = Tensor | bool | int | float
Key = tuple[Literal["attribute", "item"], Any]


@dataclass(frozen=True)
class Field:
    """A value, the path that leads to it as one would write it (`cache.layers[0].k`), and the steps of that path."""

    path: str
    keys: tuple[Key, ...]
    value: Value

    @property
    def parent(self) -> str:
        """The path of what holds it."""
        return self.path[: max(self.path.rfind("."), self.path.rfind("["))]


def fields_of(structure: Any, name: str) -> dict[str, Field]:
    """Every dense tensor and number in dictionaries, lists, tuples and objects, a tensor met twice once."""
    return {field.path: field for field in _walk(structure, name, (), set(), _DEEPEST)}


def module_fields(module: nn.Module, name: str) -> dict[str, Field]:
    """What hangs on a module and its parts beside parameters: buffers, plain attributes and what they hold."""
    found: dict[str, Field] = {}
    seen = {id(each) for each in (*module.modules(), *module.parameters())}
    for path, child in module.named_modules():
        way = f"{name}.{path}" if path else name
        keys: tuple[Key, ...] = tuple(("attribute", part) for part in path.split(".") if part)
        held = {**registered(child, [BUFFERS]), **{key: value for key, value in vars(child).items() if _is_data(key)}}
        for key, value in held.items():
            for field in _walk(value, f"{way}.{key}", (*keys, ("attribute", key)), seen, _DEEPEST):
                found[field.path] = field
    return found


def kept(fields: Mapping[str, Field]) -> dict[str, Field]:
    """The same with copies of the tensors, which stay as they are now."""
    return {path: Field(path, field.keys, _copy(field.value)) for path, field in fields.items()}


def put(structure: Any, keys: tuple[Key, ...], value: Value) -> Any:
    """The structure with another value at the end of that path: in place where it can be, and in every other view too.

    Raises what the structure raises for a path that it does not have.
    """
    if not keys:
        is_alike = isinstance(structure, Tensor) and isinstance(value, Tensor) and structure.dtype == value.dtype
        if is_alike and structure.shape == value.shape:  # type: ignore[union-attr]
            structure.copy_(value)
            return structure
        return _copy(value)
    if len(keys) == 1 and not _has(structure, keys[0]):
        return _set(structure, keys[0], _copy(value))
    inside = _get(structure, keys[0])
    result = put(inside, keys[1:], value)
    return structure if result is inside else _set(structure, keys[0], result)


def _walk(value: Any, path: str, keys: tuple[Key, ...], seen: set[int], depth: int) -> Iterator[Field]:
    if isinstance(value, _NUMBERS):
        yield Field(path, keys, value)
    if value is None or isinstance(value, (*_NUMBERS, str, bytes, type)) or depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_meta and type(value) is not nn.Parameter:
            yield Field(path, keys, value)
        return
    for way, key, part in _parts(value):
        yield from _walk(part, f"{path}{way}", (*keys, key), seen, depth - 1)


def _parts(value: Any) -> list[tuple[str, Key, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", ("item", key), part) for key, part in list(value.items())[:_MOST_ITEMS]]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", ("item", index), value[index]) for index, name in enumerate(value._fields)]
    if isinstance(value, list | tuple | deque):
        return [(f"[{index}]", ("item", index), part) for index, part in enumerate(list(value)[:_MOST_ITEMS])]
    if not is_own(value):
        return []
    held = {**slots_of(value), **(attributes_of(value) or {})}
    if isinstance(value, nn.Module):
        data = {name: part for name, part in held.items() if _is_data(name)}
        held = {**registered(value, [BUFFERS]), **data, **registered(value, [MODULES])}
    return [(f".{name}", ("attribute", name), part) for name, part in held.items()]


def _is_data(attribute: str) -> bool:
    """Whether a module's attribute is the subject's, not what every module has."""
    return attribute not in (*REGISTRIES, "training") and "_hooks" not in attribute


def _has(structure: Any, key: Key) -> bool:
    kind, name = key
    return name in structure if kind == "item" and isinstance(structure, Mapping) else True


def _get(structure: Any, key: Key) -> Any:
    kind, name = key
    return structure[name] if kind == "item" else getattr(structure, name)


def _set(structure: Any, key: Key, value: Any) -> Any:
    kind, name = key
    if kind == "item" and isinstance(structure, tuple):
        items = [value if index == name else part for index, part in enumerate(structure)]
        return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)
    if kind == "item":
        structure[name] = value
    elif isinstance(structure, nn.Module):
        setattr(structure, name, value)
    else:
        object.__setattr__(structure, name, value)  # a frozen dataclass has no other
    return structure


def _copy(value: Value) -> Value:
    return value.detach().clone() if isinstance(value, Tensor) else value
