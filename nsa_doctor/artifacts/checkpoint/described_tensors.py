"""Tensors as a pickle describes them, named by the keys that lead to them, each held against the bytes it lies in."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nsa_doctor.artifacts.checkpoint.contents import Composed
from nsa_doctor.artifacts.checkpoint.fault import FaultError, too_much
from nsa_doctor.artifacts.checkpoint.limits import MOST_NESTING, MOST_TENSORS, Deadline
from nsa_doctor.artifacts.checkpoint.pickled_values import Kept, Made, Row, Table
from nsa_doctor.artifacts.checkpoint.rebuilt_tensors import Rebuilt, Storages, rebuilt

_SETTINGS = ("gate", "gate_temperature")
_LONGEST_KEY = 256
_CLOCK_EVERY = 65_536
_HOLDS = (Row, Table, Made, Kept, tuple)
_Path = tuple[str, ...]


def described_tensors(
    described: Any, storages: Storages, settings: dict[str, str | float], deadline: Deadline
) -> list[Rebuilt]:
    """Every tensor in it; what a configuration in it says goes to `settings`.

    Nothing is walked through twice, so that what refers to itself, or to the same again and again, ends.
    """
    found = _Walk(storages, settings, deadline).tensors((), described)
    names = Counter(tensor.name for tensor in found)
    why = "another tensor of the file has the same name"
    return [tensor if names[tensor.name] == 1 else replace(tensor, unread=tensor.unread or why) for tensor in found]


class _Walk:
    """Goes through everything that a pickle describes."""

    def __init__(self, storages: Storages, settings: dict[str, str | float], deadline: Deadline) -> None:
        self._storages, self._settings, self._deadline = storages, settings, deadline
        self._seen: set[int] = set()
        self._num_steps = self._num_found = 0

    def tensors(self, path: _Path, node: Any) -> list[Rebuilt]:
        """Those in a node, in the order of the pickle."""
        found: list[Rebuilt] = []
        waiting = [(path, node)]
        while waiting:
            path, node = waiting.pop()
            self._count()
            if len(path) > MOST_NESTING:
                raise FaultError("limit", f"{self._storages.name} nests its contents more than {MOST_NESTING} deep")
            tensor = rebuilt(".".join(path), node, self._storages)
            if tensor is not None:
                found.append(self._with_parts(path, node, tensor))
            elif id(node) not in self._seen:
                self._seen.add(id(node))
                waiting += reversed(list(_inside(path, node)))
                if isinstance(node, Table | Made):
                    self._settings |= {key: value for key, value in node.pairs if _is_setting(key, value)}
        return found

    def _with_parts(self, path: _Path, node: Any, tensor: Rebuilt) -> Rebuilt:
        """What is composed with the stored tensors that it is composed of."""
        self._num_found += 1
        if self._num_found > MOST_TENSORS:
            raise too_much(self._storages.name, f"{self._num_found:,} tensors and more", MOST_TENSORS)
        if not isinstance(tensor, Composed) or not isinstance(node, Made) or id(node) in self._seen:
            return tensor
        self._seen.add(id(node))
        inside = _inside((*path, "parts"), node)  # deeper at each tensor in a tensor, so that it ends
        parts = [each for inner, part in inside for each in self.tensors(inner, part)]
        stored = [each for part in parts for each in (part.parts if isinstance(part, Composed) else (part,))]
        return replace(tensor, parts=tuple(stored))

    def _count(self) -> None:
        self._num_steps += 1
        if self._num_steps % _CLOCK_EVERY == 0:
            self._deadline.check(f"reading {self._storages.name}")


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
    for key, item in _kept(pairs):
        if isinstance(item, _HOLDS):
            yield (*path, key), item


def _kept(pairs: list[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """What a dictionary keeps: of a text that is a key several times the last value, as a loader does."""
    texts = {key: value for key, value in pairs if type(key) is str}
    yield from ((_text(key), value) for key, value in texts.items())
    for index, (key, value) in enumerate(pairs):
        if type(key) is not str:
            is_short = type(key) in (float, bool) or (type(key) is int and abs(key) < 2**63)
            yield str(key) if is_short else f"?{index}", value


def _text(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}...{len(key)}"
