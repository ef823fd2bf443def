"""Takes down all that a module holds and puts it back, so that a run does not begin where another one ended."""

import random
import sys
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.internal import (
    is_traceable_wrapper_subclass,
    memory_of,
    registered,
    storage_key,
)

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size})
# Whose objects hold nothing of the subject's.
_CLOSED = frozenset({"torch", "numpy", "nsa_doctor", *sys.stdlib_module_names})
_WRAPPERS = ("torch.nn.parallel", "torch.distributed")  # what they keep about a pass is also kept where Python is not
_MOST_ITEMS = 100_000  # of a container; a larger one is data, which stays as it is


class ModuleState:
    """What a module holds now, to be put back as often as asked for, each object in its place.

    Of every submodule: which tensor each buffer and plain attribute is, where it lies in memory, and every bit of it;
    numbers, containers and the subject's own objects, however deep; hooks, submodules, generators of random numbers.
    What two modules share they go on sharing. Values and gradients of parameters only `with_parameters`. By reference:
    what cannot be copied (locks, files), objects of libraries, and modules that have no shape before their first pass.
    """

    def __init__(self, module: nn.Module, *, with_parameters: bool = False) -> None:
        self._with_parameters = with_parameters
        self._contents: list[tuple[Any, Any]] = []
        self._tensors: list[_Placed] = []
        self._bytes: dict[int, tuple[torch.UntypedStorage, Tensor]] = {}
        self._writes: list[Callable[[], object]] = []
        seen: dict[int, Any] = {}  # holds what it knows, or an id would be given twice
        waiting: deque[Any] = deque([module, *module.buffers(), *module.parameters()])
        while waiting:
            value = waiting.popleft()
            if type(value) not in _PLAIN and id(value) not in seen:
                seen[id(value)] = value
                waiting.extend(self._keep(value))

    def restore(self) -> None:
        """Put back what differs."""
        for container, before in self._contents:
            _put_back(container, before)
        with torch.no_grad():
            for storage, values in self._bytes.values():
                if storage.nbytes() != values.numel():
                    storage.resize_(values.numel())
                here = _bytes_of(storage)
                if not torch.equal(here.cpu(), values):
                    here.copy_(values)
            for placed in self._tensors:
                placed.restore()
        for write in self._writes:
            write()

    def _keep(self, value: Any) -> Iterable[Any]:
        """Take down one value; what it leads to."""
        if isinstance(value, Tensor):
            return self._keep_tensor(value)
        if isinstance(value, nn.Module) and (_is_lazy(value) or type(value).__module__.startswith(_WRAPPERS)):
            return list(value.children())
        found: list[Any] = []
        if isinstance(value, dict | list | set | deque):
            if len(value) > _MOST_ITEMS or _is_sharded(value):
                return ()
            self._contents.append((value, _copied(value)))
            found += value.values() if isinstance(value, dict) else value
        elif isinstance(value, tuple | frozenset):
            found += value
        if is_own(value):
            slots = slots_of(value)
            self._writes += [partial(object.__setattr__, value, name, each) for name, each in slots.items()]
            found += [*slots.values(), attributes_of(value)]
        else:
            self._writes += _writes(value)
        return found

    def _keep_tensor(self, tensor: Tensor) -> Iterable[Any]:
        is_left_out = isinstance(tensor, nn.Parameter) and not self._with_parameters
        if is_left_out or is_lazy(tensor) or tensor.is_meta:
            return ()
        wrapper: Any = tensor
        if is_traceable_wrapper_subclass(wrapper):
            names, _ = wrapper.__tensor_flatten__()
            self._writes += [partial(setattr, tensor, "grad", tensor.grad)] if tensor.is_leaf else []
            return [*(getattr(wrapper, name) for name in names), tensor.grad if tensor.is_leaf else None]
        placed = attempt(lambda: _Placed(tensor))
        if isinstance(placed, Caught):  # a sparse one has no memory that it could show
            return ()
        self._tensors.append(placed)
        key = storage_key(placed.storage)
        if key not in self._bytes:
            self._bytes[key] = (placed.storage, _bytes_of(placed.storage).to("cpu", copy=True))
        return [placed.gradient]


class _Placed:
    """A tensor, the memory that it shows, and its gradient."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self.storage = tensor, tensor.untyped_storage()
        self.gradient = tensor.grad if tensor.is_leaf else None
        self._view = _view(tensor)

    def restore(self) -> None:
        """Have it show the same memory in the same way."""
        tensor = self._tensor
        if tensor.is_leaf and tensor.grad is not self.gradient:
            tensor.grad = None  # of whatever shape the tensor has meanwhile
        if memory_of(tensor) != storage_key(self.storage) or _view(tensor) != self._view:
            dtype, *view = self._view
            tensor.data = torch.empty(0, dtype=dtype, device=self.storage.device).set_(self.storage, *view)
        if tensor.is_leaf and tensor.grad is not self.gradient:
            tensor.grad = self.gradient


def _view(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _is_lazy(module: nn.Module) -> bool:
    """Whether its first pass gives it shapes and another class, which cannot be taken back."""
    return any(is_lazy(tensor) for tensor in registered(module).values())


def _is_sharded(value: Any) -> bool:
    """Whether it holds parameters that others put in and out as a pass goes on."""
    held = value.values() if isinstance(value, dict) else ()
    return any(isinstance(each, nn.Parameter) and is_traceable_wrapper_subclass(each) for each in held)


def is_own(value: Any) -> bool:
    """Whether its attributes are of the subject's making."""
    if isinstance(value, nn.Module | SimpleNamespace | UserDict | UserList):
        return True
    return not isinstance(value, type) and type(value).__module__.partition(".")[0] not in _CLOSED


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Its `__dict__` itself, past whatever it answers when it is asked for one."""
    found = attempt(lambda: object.__getattribute__(value, "__dict__"))
    return found if isinstance(found, dict) else None


def slots_of(value: Any) -> dict[str, Any]:
    """The attributes that its classes name in `__slots__`."""
    named = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    names = [name for each in named for name in ((each,) if isinstance(each, str) else each)]
    own = [name for name in names if not name.startswith("__")]
    found = {name: attempt(partial(object.__getattribute__, value, name)) for name in own}
    return {name: each for name, each in found.items() if not isinstance(each, Caught)}


def _writes(value: Any) -> list[Callable[[], object]]:
    """What puts a generator of random numbers, or an array, back to where it is now."""
    if isinstance(value, torch.Generator):
        return [partial(value.set_state, value.get_state())]
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return [partial(value.setstate, value.getstate())]
    if (numpy := sys.modules.get("numpy")) is None:
        return []
    if isinstance(value, numpy.random.Generator):
        return [partial(setattr, value.bit_generator, "state", value.bit_generator.state)]
    if isinstance(value, numpy.random.RandomState):
        return [partial(value.set_state, value.get_state())]
    if isinstance(value, numpy.ndarray) and value.flags.writeable:
        return [partial(numpy.copyto, value, value.copy())]
    return []


def _copied(container: Any) -> dict[Any, Any] | list[Any] | set[Any]:
    if isinstance(container, dict):
        return {**container}
    return set(container) if isinstance(container, set) else list(container)


def _put_back(container: Any, before: Any) -> None:
    """Give the container the items that it had, by the methods of its kind: a class of one's own may do more."""
    if isinstance(container, dict):
        _put_back_items(container, before)
    elif isinstance(container, set):
        if container != before:
            set.clear(container)
            set.update(container, before)
    elif len(container) != len(before) or any(one is not other for one, other in zip(container, before, strict=True)):
        kind = list if isinstance(container, list) else deque
        kind.clear(container)
        kind.extend(container, before)


def _put_back_items(items: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Key by key, for other threads may be looking; all over again only where the order is another one."""
    kind: type[dict[Any, Any]] = OrderedDict if isinstance(items, OrderedDict) else dict
    for key in [key for key in kind.keys(items) if key not in before]:
        kind.__delitem__(items, key)
    for key, value in before.items():
        if kind.get(items, key, _NOTHING) is not value:
            kind.__setitem__(items, key, value)
    if list(kind.keys(items)) != list(before):
        kind.clear(items)
        kind.update(items, before)


_NOTHING = object()
