"""CPU tensors that claim to lie on a GPU, so that a call which mixes devices is seen where there is none.

Two modes of torch's work together: one answers what code asks of devices and records where what it makes lies, the
other (`device_ledger.Operations`) sees every operation. All that runs, runs on the CPU, and with its values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.internal import is_transformed
from nsa_doctor.probes.model.device_ledger import CPU, Ledger, Operations, Record, RefusedError, memory_key
from nsa_doctor.probes.tensors.operations import tensors_in


class ClaimedDevices:
    """Where the tensors of a subject claim to lie, over several regions: what it keeps of one is known in the next."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._ledger = Ledger(FrameFilter(packages))

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """A region in which `.to(device)` makes tensors claim to lie on a GPU that need not be there, the current one.

        `MixedDevicesError` and `RefusedError` are raised in it where torch raises on a GPU.
        """
        with Operations(self._ledger, device), _Functions(self._ledger, device):
            yield


@dataclass(frozen=True)
class _Call:
    """A call as it can be made on the CPU, and the device that it named."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    wanted: torch.device | None = None


class _Functions(TorchFunctionMode):
    """Answers what code asks of devices, and has what it makes there claim to lie there."""

    def __init__(self, ledger: Ledger, device: torch.device) -> None:
        super().__init__()
        self._ledger = ledger
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function of torch's."""
        name = _ATTRIBUTES.get(func) if type(func) is _GETTER else getattr(func, "__name__", None)
        if name is not None and (name in _QUESTIONS or name.startswith("is_")):
            answer = self._answer(name, args)
            if answer is not None:
                return answer
        if name == "pin_memory":
            return args[0]
        self._refuse(str(name), args, kwargs or {})
        call = self._on_cpu(func, str(name), args, dict(kwargs or {}))
        result = call.func(*call.args, **call.kwargs)
        if call.wanted is not None and isinstance(result, Tensor):
            return self._moved(result, call)
        of_numbers = name in _OF_NUMBERS and not isinstance(args[0] if args else None, Tensor)  # read one by one
        self._record_new(result, [] if of_numbers else tensors_in(call.args, call.kwargs))
        if name == "_pad_packed_sequence":
            self._ledger.write(result[1], self._ledger.made_here())  # lengths, for the host
        return result

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        """What a question about a tensor's device is answered; None of another question."""
        if not args or not isinstance(args[0], Tensor):
            return None
        device = self._of(args[0])
        if name == "device":
            return device
        if name == "type":
            return None if len(args) > 1 or device == CPU else args[0].type().replace(".", f".{device.type}.", 1)
        if name == "get_device":
            return -1 if device.index is None else device.index
        return device.type == name.removeprefix("is_") if name in _IS_DEVICE else None

    def _refuse(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise what torch raises before anything runs: of values asked for on the host, and a generator elsewhere."""
        if name in ("numpy", "__array__") and self._of(args[0]) != CPU and not kwargs.get("force"):
            raise RefusedError(
                f"can't convert {self._of(args[0])} device type tensor to numpy. Use Tensor.cpu() first."
            )
        lengths = args[1] if name in _LENGTHS_ON_HOST and len(args) > 1 else None
        if isinstance(lengths, Tensor) and self._of(lengths) != CPU:
            raise RefusedError(f"{name.strip('_')} expects its lengths on cpu, but they are on {self._of(lengths)}")
        wanted, generator = kwargs.get("device"), kwargs.get("generator")
        if generator is not None and wanted is not None and self._resolved(wanted).type != generator.device.type:
            kind = self._resolved(wanted).type
            raise RefusedError(f"Expected a '{kind}' device type for generator but found '{generator.device.type}'")

    def _of(self, tensor: Tensor) -> torch.device:
        """What is not known of the innards of a transform, and of what torch made for itself, goes with the others."""
        return self._device if is_transformed(tensor) else self._ledger.of(tensor).device or self._device

    def _on_cpu(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        if name == "cpu":
            return _Call(func, args, kwargs, CPU)
        if name == self._device.type and args and isinstance(args[0], Tensor):
            named = args[1] if len(args) > 1 else kwargs.get("device")
            return _Call(Tensor.to, (args[0], CPU), {}, self._resolved(name if named is None else named))
        if kwargs.get("device") is not None:
            wanted = self._resolved(kwargs["device"])
            return _Call(func, args, {**kwargs, "device": self._real(wanted)}, wanted)
        second = kwargs.get("other") if len(args) < 2 else args[1]
        if name in ("to", "type_as") and isinstance(second, Tensor):
            return _Call(func, args, kwargs, self._of(second))
        if name == "type" and isinstance(second, str):  # "torch.FloatTensor", "torch.cuda.FloatTensor"
            on_cpu = second.replace(f".{self._device.type}.", ".")
            return _Call(func, (args[0], on_cpu), kwargs, CPU if on_cpu == second else self._device)
        if name == "to" and isinstance(second, (str, int, torch.device)):
            wanted = self._resolved(second)
            return _Call(func, (args[0], self._real(wanted), *args[2:]), kwargs, wanted)
        return _Call(func, args, kwargs)

    def _resolved(self, named: Any) -> torch.device:
        """The device with its index: the current one's where none is named."""
        device = torch.device(self._device.type, named) if isinstance(named, int) else torch.device(named)
        if device.type == "cpu":
            return CPU
        return self._device if device.type == self._device.type and device.index is None else device

    def _real(self, wanted: torch.device) -> torch.device:
        return CPU if wanted.type == self._device.type else wanted

    def _moved(self, result: Tensor, call: _Call) -> Tensor:
        """The result where it was wanted, and a copy where torch would copy."""
        assert call.wanted is not None
        keys = {memory_key(each) for each in tensors_in(call.args, call.kwargs)}
        if memory_key(result) in keys:
            known = self._ledger.of(result)
            if known.device in (None, call.wanted):
                if known.made is not None and not known.is_asked_for and call.wanted != self._device:
                    self._ledger.write(result, self._ledger.made_here(call.wanted, is_asked_for=True))
                return result
            result = result.clone()
        source = call.args[0] if call.args else None
        if isinstance(source, Tensor) and result.requires_grad and self._of(source) != call.wanted:
            result = _Crossing.apply(result, self._ledger, self._ledger.of(source))
        is_there = call.wanted == self._device
        self._ledger.write(
            result, Record(call.wanted) if is_there else self._ledger.made_here(call.wanted, is_asked_for=True)
        )
        return result

    def _record_new(self, result: Any, given: list[Tensor]) -> None:
        """Record results that a function of torch's made for itself: with its tensors, or here where it has none."""
        keys = {memory_key(each) for each in given}
        for each in tensors_in(result):
            known = self._ledger.of(each)
            if memory_key(each) in keys or not (known.device is None or known.source == memory_key(each)):
                continue
            records = [self._ledger.of(tensor) for tensor in given]
            records.sort(key=lambda record: not record.is_on_gpu)
            self._ledger.write(each, records[0] if records else self._ledger.made_here())


class _Crossing(torch.autograd.Function):
    """A copy to another device, whose gradient comes back to where its source lies."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, ledger: Ledger, source: Record) -> Tensor:
        ctx.ledger, ctx.source = ledger, source
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        back = gradients[0].clone()
        ctx.ledger.write(back, ctx.source)
        return back, None, None


_OF_NUMBERS = frozenset({"tensor", "as_tensor", "asarray"})
_LENGTHS_ON_HOST = frozenset({"tensor_split", "_pack_padded_sequence"})
_QUESTIONS = frozenset({"device", "get_device", "type"})
_IS_DEVICE = frozenset({"is_cuda", "is_cpu", "is_xpu"})
_GETTER = type(Tensor.device.__get__)
_ATTRIBUTES = {getattr(Tensor, name).__get__: name for name in ("device", *_IS_DEVICE)}
