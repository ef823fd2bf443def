"""Tensors as a pickle describes them, each held against the bytes it claims to lie in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsa_doctor.artifacts.checkpoint.contents import Stored
from nsa_doctor.artifacts.checkpoint.dtypes import BYTES
from nsa_doctor.artifacts.checkpoint.fault import FaultError, corrupt, quoted, too_much
from nsa_doctor.artifacts.checkpoint.limits import MOST_DIMENSIONS, MOST_NESTING, MOST_TENSORS, Deadline
from nsa_doctor.artifacts.checkpoint.pickles import Kept, Made, Name, Row, Table
from nsa_doctor.artifacts.checkpoint.source import Source
from nsa_doctor.artifacts.checkpoint.symbols import DTYPES, STORAGES, TENSORS

_SETTINGS = ("gate", "gate_temperature")
_VIEWS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
_WRAPPED = ("_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_device_tensor_from_cpu_tensor")
_PLAIN_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
_NOT_READ = {
    "_rebuild_meta_tensor_no_storage": "it is a meta tensor, without values",
    "_rebuild_device_tensor_from_numpy": "it is stored as a numpy array",
}
_LONGEST_KEY = 256
_CLOCK_EVERY = 65_536
_Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Storages:
    """The bytes that tensors may lie in, by key; `name` is the file's."""

    name: str
    windows: Mapping[str, Source]
    is_swapped: bool = False


def described_tensors(
    described: Any, storages: Storages, settings: dict[str, str | float], deadline: Deadline
) -> list[Stored]:
    """Every tensor in it, named by the keys that lead to it; what a configuration in it says goes to `settings`.

    Nothing is walked through twice, so that what refers to itself, or to the same again and again, ends.
    """
    found: list[Stored] = []
    seen: set[int] = set()
    waiting: list[tuple[_Path, Any]] = [((), described)]
    steps = 0
    while waiting:
        path, node = waiting.pop()
        steps += 1
        if steps % _CLOCK_EVERY == 0:
            deadline.check(f"reading {storages.name}")
        tensor = _tensor(path, node, storages)
        if tensor is not None:
            found.append(tensor)
            if len(found) > MOST_TENSORS:
                raise too_much(storages.name, f"{len(found):,} tensors and more", MOST_TENSORS)
        elif id(node) not in seen:
            seen.add(id(node))
            if len(path) > MOST_NESTING:
                raise FaultError("limit", f"{storages.name} nests its contents more than {MOST_NESTING} deep")
            waiting += reversed(list(_inside(path, node)))
            if isinstance(node, Table | Made):
                settings |= {key: value for key, value in node.pairs if _is_setting(key, value)}
    return found


def _is_setting(key: Any, value: Any) -> bool:
    return type(key) is str and key in _SETTINGS and type(value) in (str, float)


def _inside(path: _Path, node: Any) -> Iterator[tuple[_Path, Any]]:
    """What may hold tensors, with the keys that lead there."""
    pairs: list[tuple[Any, Any]] = []
    items: Any = ()
    if isinstance(node, tuple):
        items = node
    elif isinstance(node, Row):
        items = node.items
    elif isinstance(node, Table):
        pairs = node.pairs
    elif isinstance(node, Made):
        pairs, items = node.pairs, node.items
        yield from ((path, part) for part in (node.arguments, node.state) if isinstance(part, _HOLDS))
    for index, item in enumerate(items):
        if isinstance(item, _HOLDS):
            yield (*path, str(index)), item
    for key, item in pairs:
        if isinstance(item, _HOLDS):
            yield (*path, _text(key)), item


_HOLDS = (Row, Table, Made, tuple)


def _text(key: Any) -> str:
    if type(key) is str:
        return key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}..."
    is_short = type(key) in (float, bool) or (type(key) is int and abs(key) < 2**63)
    return str(key) if is_short else "?"


def _tensor(path: _Path, node: Any, storages: Storages) -> Stored | None:
    """The tensor that a node describes; None where it describes something else, which may hold some."""
    while isinstance(node, Made) and isinstance(node.arguments, tuple) and node.name in TENSORS:
        kind, arguments = node.name.rpartition(".")[2], node.arguments
        if kind == "_rebuild_from_type_v2":
            inner, of = arguments[:2] if len(arguments) == 4 else (None, None)
            if not isinstance(inner, Name) or not isinstance(of, Name) or of.text not in _PLAIN_CLASSES:
                return None
            node = Made(inner.text, arguments[2])
        elif kind in _WRAPPED:
            node = arguments[0] if arguments else None
        elif kind in _VIEWS:
            return _view(".".join(path), kind, arguments, storages)
        elif kind in _NOT_READ:
            return Stored(name=".".join(path), dtype="", shape=(), unread=_NOT_READ[kind])
        else:
            return None
    return None


def _view(name: str, kind: str, arguments: tuple[Any, ...], storages: Storages) -> Stored:
    if len(arguments) < 4 or not isinstance(arguments[0], Kept):
        raise _broken(name, storages)
    kept = _kept(arguments[0].key)
    first, shape, strides = arguments[1], _sizes(arguments[2]), _sizes(arguments[3])
    if kept is None or shape is None or strides is None or len(shape) != len(strides):
        raise _broken(name, storages)
    key, dtype, count = kept
    if kind == "_rebuild_tensor_v3":
        dtype = arguments[6].text if len(arguments) > 6 and isinstance(arguments[6], Name) else ""
        if dtype not in DTYPES:
            raise _broken(name, storages)
        dtype = dtype.removeprefix("torch.")
    if type(first) is not int or first < 0:
        raise _broken(name, storages)
    storage = storages.windows.get(key)
    if storage is None:
        raise corrupt(storages.name, f"the values of {quoted(name)} are missing (entry {quoted(key)})")
    if count is not None and count * BYTES[kept[1]] != storage.num_bytes:
        raise corrupt(
            storages.name,
            f"the storage of {quoted(name)} has {storage.num_bytes:,} bytes and not {count * BYTES[kept[1]]:,}",
        )
    tensor = Stored(
        name=name,
        dtype=dtype,
        shape=shape,
        strides=strides,
        storage=storage,
        first=first,
        is_swapped=storages.is_swapped,
    )
    check_extent(tensor)
    return tensor


def _broken(name: str, storages: Storages) -> FaultError:
    return corrupt(storages.name, f"the description of {quoted(name)} makes no sense")


def _kept(key: Any) -> tuple[str, str, int | None] | None:
    """Entry, dtype and number of values of a storage, as its persistent id has them; None where bytes are counted."""
    if not isinstance(key, tuple) or len(key) < 5 or type(key[0]) is not str or key[0] != "storage":
        return None
    _, kind, entry, _, count = key[:5]
    if not isinstance(kind, Name) or type(entry) is not str or type(count) is not int or count < 0:
        return None
    if kind.text in DTYPES:
        return entry, kind.text.removeprefix("torch."), count
    if kind.text not in STORAGES:
        return None
    dtype = STORAGES[kind.text]
    return entry, dtype or "uint8", count


def check_extent(tensor: Stored) -> None:
    """Raise a FaultError when a tensor reaches beyond the bytes it lies in, however large it claims to be."""
    assert tensor.storage is not None
    where = tensor.storage.name
    if len(tensor.shape) > MOST_DIMENSIONS:
        raise corrupt(where, f"{quoted(tensor.name)} has {len(tensor.shape):,} dimensions")
    span = 0 if 0 in tensor.shape else 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    if span and (tensor.first + span) * BYTES[tensor.dtype] > tensor.storage.num_bytes:
        shape = "x".join(str(size) if size < 2**63 else "huge" for size in tensor.shape[:8])
        what = f"{quoted(tensor.name)} of shape {shape} reaches beyond the {tensor.storage.num_bytes:,} bytes"
        raise corrupt(where, f"{what} that are there")


def _sizes(node: Any) -> tuple[int, ...] | None:
    """Whole numbers from zero on, as a tuple or a torch.Size."""
    if isinstance(node, Made) and node.name == "torch.Size" and isinstance(node.arguments, tuple) and node.arguments:
        node = node.arguments[0]
    if isinstance(node, Row):
        node = tuple(node.items)
    is_sizes = isinstance(node, tuple) and all(type(size) is int and size >= 0 for size in node)
    return node if is_sizes else None
