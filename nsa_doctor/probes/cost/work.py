"""Counts what one pass asks of the device, line by line: operations started from Python, and waits for the device."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.internal import frame_above
from nsa_doctor.core.measurement import Mode, Place, Point
from nsa_doctor.probes.hooks.pass_watcher import PassWatcher
from nsa_doctor.probes.internal import flops_of, memory_of, number_of, running_node
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.probes.tensors.dataflow import Dataflow
from nsa_doctor.probes.tensors.operands import tensors_in
from nsa_doctor.probes.tensors.operations import operation_name, written_arguments
from nsa_doctor.subject.contract import Subject

_ALWAYS_WAIT = frozenset(
    (
        *("local_scalar_dense", "nonzero", "nonzero_numpy", "unique", "unique2", "unique_dim"),
        *("unique_consecutive", "masked_select", "equal", "allclose", "bincount"),
    )
)
_READ_BY_HOST = frozenset({"tolist", "numpy", "cpu", "__array__"})
_NAMES = {"local_scalar_dense": "item"}
_SCANS = "/torch/_higher_order_ops/associative_scan"
_NO_WORK = frozenset({"detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty"})


@dataclass
class LineWork:
    """What one line of the subject's source did: operations and waits by name, and when, as running numbers.

    `cost` is values computed plus floating-point operations of matrix products.
    `sites` counts by operation and by the way there through the source: a loop passes the same way in every round.
    """

    place: Place
    operations: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    moments: list[int] = field(default_factory=list)
    sites: Counter[tuple[str, int]] = field(default_factory=Counter)
    cost: int = 0

    @property
    def num_waits(self) -> int:
        """Times the host waited for the device here."""
        return self.waits.total()


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one pass did: by line (file, line and module), with who computed what from what."""

    length: int
    lines: tuple[LineWork, ...]
    flow: Dataflow
    num_operations: int
    cost: int
    seconds: float

    @property
    def num_waits(self) -> int:
        """Times the host waited for the device."""
        return sum(line.num_waits for line in self.lines)


def count_work(subject: Subject, length: int, mode: Mode = "train") -> Work:
    """Run the subject once, forward and in training backward, and count."""
    watcher = _Counter(subject)
    performance = perform(
        subject,
        Point(length=length, dtype=subject.dtype, mode=mode),
        Conditions(seed=subject.seed, device=subject.device, measures_memory=False),
        watcher,
    )
    return Work(
        length=length,
        lines=tuple(watcher.lines),
        flow=watcher.flow,
        num_operations=watcher.num_operations,
        cost=watcher.cost,
        seconds=performance.seconds,
    )


class _Counter(PassWatcher):
    """Views are free; what starts no work is not counted."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.packages)
        self.lines: list[LineWork] = []
        self.flow = Dataflow()
        self.num_operations = self.cost = 0
        self._reads = _HostReads(self)
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._last_line = -1

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count in forward and backward, what the host reads too."""
        with self._reads if name != "build" else nullcontext(), super().phase(name):
            yield

    def wait(self, name: str) -> None:
        """The host waits for the device here."""
        number = self._line()
        if number is not None:
            self.lines[number].waits[name] += 1

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and account for it."""
        inputs = tensors_in(args, kwargs)
        written = tensors_in(written_arguments(func, args, kwargs))
        result = func(*args, **kwargs)
        if self._phase == "forward":
            self._nodes.note(self._places)
        name = operation_name(func).rstrip("_")
        held = {memory_of(tensor) for tensor in inputs}
        fresh = [output for output in tensors_in(result) if memory_of(output) not in held]
        waits = _waits(name, func, args)
        works = (bool(fresh or written) or waits) and name not in _NO_WORK
        if works or fresh:
            cost = sum(tensor.numel() for tensor in (*fresh, *written)) + _products(func, args, kwargs, result)
            self._account(name, works, waits, cost)
            self.flow.add(self._last_line, name, inputs, fresh, written)
        return result

    def _account(self, name: str, works: bool, waits: bool, cost: int) -> None:
        number = self._line()
        self._last_line = -1 if number is None else number
        if not works:
            return
        self.num_operations += 1
        self.cost += cost
        if number is not None:
            line = self.lines[number]
            line.operations[name] += 1
            line.moments.append(len(self.flow.nodes))
            line.sites[name, _way_here()] += 1
            line.cost += cost
            if waits:
                line.waits[_NAMES.get(name, name)] += 1

    def _line(self) -> int | None:
        """The line now running; None in backward where no line of the subject's runs."""
        place, is_own = self._places.here()
        if self._phase == "backward":
            if not is_own:
                return None
            place = place if place.module_class else self._owned(place)
        key = (place.module, place.file, place.line)
        if key not in self._numbers:
            self._numbers[key] = len(self.lines)
            self.lines.append(LineWork(place))
        return self._numbers[key]

    def _owned(self, place: Place) -> Place:
        """A line of a backward written in Python, with the module that holds it or that called its forward."""
        place, node = self._places.owner(place), running_node()
        made = None if place.module_class or node is None else self._nodes.of(number_of(node))
        return place if made is None else replace(place, module=made[0].module, module_class=made[0].module_class)


class _HostReads(TorchFunctionMode):
    """Sees what reads a tensor on the host without any operation, as `tolist` does on a CPU."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self._counter = counter
        self._returned: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call; what `.cpu()` returned was waited for already."""
        name = getattr(func, "__name__", "")
        reads = name in _READ_BY_HOST or (name == "to" and _moves_to_cpu(*args[:2], **(kwargs or {})))
        if reads and id(args[0]) not in self._returned:
            self._counter.wait(name)
        result = func(*args, **(kwargs or {}))
        if reads and isinstance(result, Tensor):
            self._returned = {id(result): result}
        return result


def _waits(name: str, func: Any, args: tuple[Any, ...]) -> bool:
    if name == "repeat_interleave":
        return "output_size" not in str(func) and len(args) < 2
    if name in ("index", "index_put") and len(args) > 1:
        masks = [index for index in args[1] if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)]
        fills = name == "index_put" and isinstance(args[2], Tensor) and args[2].numel() == 1
        return bool(masks) and not fills  # a mask filled with one value is no index
    return name in _ALWAYS_WAIT


def _products(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of a matrix product, a convolution or attention, as torch counts them."""
    return flops_of(func, args, kwargs, result) or 0


def _moves_to_cpu(tensor: Tensor, first: Any = None, device: Any = None, **_others: Any) -> bool:
    """Whether it asks for the CPU: from another device, or by the word itself; x.to(y.device) stays where y is."""
    named = first if isinstance(first, (str, torch.device)) else device
    if str(named) != "cpu":
        return False
    caller = frame_above(2).f_code
    return tensor.device.type != "cpu" or (isinstance(named, str) and "cpu" in caller.co_consts)


def _way_here() -> int:
    """Tells one way through the source from another: every instruction on the stack, each once, however deep.

    The levels of a scan of torch's own, which halves what it is given in each, are ways of their own.
    """
    frame: FrameType | None = frame_above(4)
    way, depth = set(), 0
    while frame is not None:
        depth += _SCANS in frame.f_code.co_filename
        way.add((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    way.add((depth, -1))
    return hash(frozenset(way))


def usual_mode(subject: Subject) -> Mode:
    """Training, where the subject may be trained."""
    return "train" if "train" in subject.modes else subject.modes[0]


def heaviest(lines: Sequence[LineWork]) -> LineWork:
    """The line that costs most: a wait takes about as long as ten operations take to start."""
    return max(lines, key=lambda line: line.operations.total() + 10 * line.num_waits)
