"""Which memory is held, by the line that allocated it: counted storage by storage, the same on every device."""

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from nsa_doctor.core.measurement import Mode, Place, Point
from nsa_doctor.probes.hooks.pass_watcher import PassWatcher
from nsa_doctor.probes.internal import memory_of, number_of, running_node, storage_key
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.probes.tensors.operands import tensors_in
from nsa_doctor.subject.contract import Subject


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most bytes held at once beyond parameters and input, and the most held at once that one line allocated."""

    length: int
    bytes: int
    by_place: dict[Place, int]
    num_operations: int


def peak_memory(subject: Subject, length: int, mode: Mode = "train") -> Peak:
    """Run the subject once, forward and in training backward, and count storages."""
    watcher = Holdings(subject.packages)
    point = Point(length=length, dtype=subject.dtype, mode=mode)
    perform(subject, point, Conditions(seed=subject.seed, device=subject.device, measures_memory=False), watcher)
    return Peak(
        length=length,
        bytes=watcher.peak_bytes,
        by_place=dict(watcher.most_by_place),
        num_operations=watcher.num_operations,
    )


class Holdings(PassWatcher):
    """Follows every storage made while it watches, for as long as anything holds it, a graph in C++ too."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        super().__init__(packages)
        self.num_operations = self.held_bytes = self.made_bytes = self.peak_bytes = 0
        self.by_place: Counter[Place] = Counter()
        self.made_by_place: Counter[Place] = Counter()
        self.most_by_place: Counter[Place] = Counter()
        self._held: dict[int, Any] = {}
        self.round = 0  # what is allocated from now on belongs to it
        self._rounds: Counter[int] = Counter()

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory was allocated while this watched."""
        return any(memory_of(held) in self._held for held in tensors_in(tensor))

    def left_by(self, number: int) -> int:
        """Bytes allocated in that round that are still held."""
        return self._rounds[number]

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and account for the memory it took."""
        given = {memory_of(tensor) for tensor in tensors_in(args, kwargs)}
        result = func(*args, **kwargs)
        self.num_operations += 1
        if self._phase == "forward":
            self._nodes.note(self._places)
        for tensor in tensors_in(result):
            if memory_of(tensor) not in given:
                self._hold(tensor)
        return result

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage_key(storage), storage.nbytes()
        if key in self._held or not size:
            return
        place = self._place()
        self._held[key] = weakref.ref(storage, self._forgetting(key, size, place, self.round))
        self.held_bytes += size
        self.made_bytes += size
        self.made_by_place[place] += size
        self.by_place[place] += size
        self._rounds[self.round] += size
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self.most_by_place[place] = max(self.most_by_place[place], self.by_place[place])

    def _forgetting(self, key: int, size: int, place: Place, number: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self._held.pop(key, None)
            self.held_bytes -= size
            self.by_place[place] -= size
            self._rounds[number] -= size

        return forget

    def _place(self) -> Place:
        """The line now running; in backward the one that made the node, unless a backward in Python is running."""
        place, is_own = self._places.here()
        if self._phase != "backward" or (is_own and place.module_class):
            return place
        node = running_node()
        made = None if node is None else self._nodes.of(number_of(node))
        if made is None:
            return self._places.owner(place)
        return replace(place, module=made[0].module, module_class=made[0].module_class) if is_own else made[0]
