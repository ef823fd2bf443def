"""Which places of a tensor a call of torch reads or writes by an index, and what it writes there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt

_MOST = 1 << 22  # elements
_SETTING = "__setitem__"
_READING = frozenset({"__getitem__", "gather", "index_select", "take"})
_WRITING = frozenset({"index_put", "index_put_", "scatter", "scatter_", "index_copy", "index_copy_", "put", "put_"})
_INTEGERS = (torch.int64, torch.int32, torch.int16)


@dataclass(frozen=True)
class Read:
    """A call that reads by an index, and of which tensor."""

    source: Tensor
    name: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]

    def places(self) -> Tensor | None:
        """Where the tensor is read, each place as its number."""
        found = attempt(lambda: _places(self.name, self.source, self.args, self.named))
        return None if isinstance(found, Caught) else found


@dataclass(frozen=True)
class Write:
    """A call that writes by an index: where, each place as its number, and the values for these places."""

    target: Tensor
    places: Tensor
    values: Tensor
    given: Any  # what the call was given as values, as it is
    _name: str
    _args: tuple[Any, ...]
    _named: Mapping[str, Any]

    def with_values(self, values: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call with other values, of the shape of the places."""
        position, names = _value_position(self._name)
        args, named = list(self._args), dict(self._named)
        if len(args) > position:
            args[position] = values
        else:
            named = {name: each for name, each in named.items() if name not in names} | {names[0]: values}
        return tuple(args), named


def read_of(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Read | None:
    """The read by integers that a call is, without looking where."""
    if name not in _READING or not args or not isinstance(args[0], Tensor):
        return None
    if name == "__getitem__" and not _has_index(args[1]):
        return None
    return Read(args[0], name, args, named)


def write_of(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Write | None:
    """The write that a call is; None of what adds, reduces or writes by no index, and of what is very large."""
    if name != _SETTING and name not in _WRITING:
        return None
    target = args[0] if args else named.get("input")
    if (
        not isinstance(target, Tensor)
        or not 1 < target.numel() <= _MOST
        or (name == _SETTING and not _has_index(args[1]))
    ):
        return None
    is_added = name.startswith(("index_put", "put")) and _given(args, named, 3, "accumulate")
    if is_added or named.get("reduce") is not None or (name.startswith("scatter") and len(args) > 4):
        return None
    position, names = _value_position(name)
    values = _given(args, named, position, *names)
    found = attempt(lambda: _placed(name, target, values, args, named))
    if isinstance(found, Caught) or found is None:
        return None
    places, spread = found
    return Write(target, places, spread, values, name, args, named)


def _placed(
    name: str, target: Tensor, values: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Tensor, Tensor] | None:
    places = _places(name, target, args, named)
    if places is None or not 1 < places.numel() <= _MOST:
        return None
    given = values.detach() if isinstance(values, Tensor) else torch.as_tensor(values)
    if name.startswith("scatter") and given.ndim:
        given = given[tuple(slice(0, size) for size in places.shape)]
    while given.ndim > places.ndim and given.shape[0] == 1:
        given = given[0]
    if name.startswith("put"):
        given = given.reshape(places.shape)
    return places, torch.broadcast_to(given, places.shape).to(target.device, target.dtype)


def _places(name: str, tensor: Tensor, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    numbers = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
    if name in (_SETTING, "__getitem__"):
        return numbers[args[1]]
    if name.startswith("index_put"):
        key = _given(args, named, 1, "indices")
        return numbers[tuple(slice(None) if each is None else each for each in key)]
    if name.startswith(("put", "take")):
        return numbers.view(-1)[_given(args, named, 1, "index")]
    axis, index = _given(args, named, 1, "dim"), _given(args, named, 2, "index")
    if not isinstance(axis, int) or not isinstance(index, Tensor):
        return None
    along_rows = name in ("index_copy", "index_copy_", "index_select")
    return numbers.index_select(axis, index) if along_rows else numbers.gather(axis, index)


def _value_position(name: str) -> tuple[int, tuple[str, ...]]:
    if name.startswith(("scatter", "index_copy")):
        return 3, ("src", "value") if name.startswith("scatter") else ("source",)
    return 2, ("values", "source")[name.startswith("put") :]


def _given(args: tuple[Any, ...], named: Mapping[str, Any], position: int, *names: str) -> Any:
    return args[position] if len(args) > position else next((named[name] for name in names if name in named), None)


def _has_index(key: Any) -> bool:
    """Whether several integers, as a tensor or in a list, are part of it."""
    parts = key if isinstance(key, tuple) else (key,)
    return any(
        (isinstance(each, Tensor) and each.dtype in _INTEGERS and each.numel() > 1)
        or (isinstance(each, list) and any(type(one) is int for one in each))
        for each in parts
    )
