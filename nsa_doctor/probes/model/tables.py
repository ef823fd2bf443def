"""Which table that a module owns a call reads beyond: of positions, of masks, of kept rotations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.torch_errors import TorchError, error_kind
from nsa_doctor.probes.hooks.tensor_owners import attribute_tensors
from nsa_doctor.probes.model.device_ledger import memory_key
from nsa_doctor.probes.tensors.operations import tensors_in

_ENDS = (TorchError.INDEX_OUT_OF_RANGE, TorchError.SIZES_DIFFER)


@dataclass(frozen=True)
class Table:
    """A parameter, buffer or attribute by its name, and its shape."""

    name: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)}"


def table_read_beyond(module: nn.Module, call: Callable[[], object]) -> Table | None:
    """The table of the module beyond whose end the call reads; None when it ends otherwise."""
    watch, error = _watched(call)
    if error is None or watch.error is not error or error_kind(str(error)) not in _ENDS:
        return None
    return next(_among(module, watch.given), None)


def tables_too_short(module: nn.Module, call: Callable[[], object]) -> list[Table]:
    """What a call that raises has of the module: the tensors that what raised was given, and those cut too short."""
    watch, error = _watched(call)
    if error is None:
        return []
    given = watch.given if watch.error is error else []
    return list(_among(module, watch.with_whole_tables([*given, *watch.cut_short])))


def _watched(call: Callable[[], object]) -> tuple["_LastRaise", BaseException | None]:
    watch = _LastRaise()
    try:
        with watch:
            call()
    except SubjectFailedError as failure:
        return watch, failure.caught.error
    return watch, None


def _among(module: nn.Module, given: Sequence[Tensor]) -> Iterator[Table]:
    keys = {memory_key(tensor) for tensor in given} - {0}
    return (Table(name, tuple(own.shape)) for name, own in _tables(module) if memory_key(own) in keys)


class _LastRaise(TorchFunctionMode):
    """The tensors that the function which raised was given, and those of which a slice asked for more than there is."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.given: list[Tensor] = []
        self.cut_short: list[Tensor] = []
        self._looked_up: list[tuple[Tensor, Tensor]] = []

    def with_whole_tables(self, tensors: list[Tensor]) -> list[Tensor]:
        """Those tensors, and tables of which one of them has every row, looked up at once."""
        keys = {memory_key(tensor) for tensor in tensors} - {0}
        return [*tensors, *(table for rows, table in self._looked_up if memory_key(rows) in keys)]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function; what it raises goes on."""
        if func is Tensor.__getitem__ and _is_beyond(*args):
            self.cut_short.append(args[0])
        try:
            result = func(*args, **(kwargs or {}))
        except (IndexError, RuntimeError) as error:
            if error is not self.error:  # the innermost function is the first to raise it
                self.error, self.given = error, tensors_in((args, kwargs or {}))
            raise
        if func is nn.functional.embedding and isinstance(result, Tensor) and result.shape[-2:] == args[1].shape:
            self._looked_up.append((result, args[1]))
        return result


def _is_beyond(tensor: Tensor, index: Any) -> bool:
    """Whether a slice ends beyond the end of the tensor."""
    parts = index if isinstance(index, tuple) else (index,)
    sliced = takewhile(lambda part: isinstance(part, (int, slice)), parts)
    ends = [part.stop if isinstance(part, slice) else None for part in sliced]
    return any(type(end) is int and end > size for end, size in zip(ends, tensor.shape, strict=False))


def _tables(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
    yield from ((f"{each.module}.{each.way}".removeprefix("."), each.tensor) for each in attribute_tensors(module))
