"""How long a call would take on a machine of fixed speed: counted work, which does not depend on what else runs."""

from collections.abc import Callable
from typing import Any

from nsa_doctor.probes.internal import DispatchWatcher, flops_of
from nsa_doctor.probes.tensors.operands import tensors_in

# Of one core of an ordinary machine.
_SECONDS_PER_OPERATION = 5e-6
_BYTES_PER_SECOND = 8e9
_FLOPS_PER_SECOND = 4e10
_SHORTER, _LONGER = 16, 256


def nominal_seconds(call: Callable[[], object]) -> float:
    """What a call starts, reads, writes and multiplies, as seconds of one core; raises what the call raises."""
    with _Meter() as meter:
        call()
    return meter.operations * _SECONDS_PER_OPERATION + meter.bytes / _BYTES_PER_SECOND + meter.flops / _FLOPS_PER_SECOND


class WorkByLength:
    """The nominal seconds of a call at any length, counted at two: as a line between them, and as a square beyond."""

    def __init__(self, of_length: Callable[[int], object], limit: int) -> None:
        self._shorter, self._longer = min(_SHORTER, limit), min(_LONGER, limit)
        self._of_shorter = nominal_seconds(lambda: of_length(self._shorter))
        self._of_longer = nominal_seconds(lambda: of_length(self._longer))

    def seconds(self, length: int) -> float:
        """The nominal seconds at that length."""
        if length > self._longer:
            return self._of_longer * (length / self._longer) ** 2
        span = max(1, self._longer - self._shorter)
        share = max(0, length - self._shorter) / span
        return self._of_shorter + share * max(0.0, self._of_longer - self._of_shorter)


class _Meter(DispatchWatcher):
    """Views touch no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0
        self.flops = 0.0

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and count it."""
        out = func(*args, **kwargs)
        self.operations += 1
        if not getattr(func, "is_view", False):
            self.bytes += sum(each.numel() * each.element_size() for each in tensors_in(args, kwargs, out))
            self.flops += _flops(func, args, kwargs, out)
        return out


def _flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Floating-point operations of a product or an attention; other operations are as long as their memory is."""
    count = flops_of(func, args, kwargs, out)
    if count is not None:
        return float(count)
    if "attention" in str(func):
        q, k = tensors_in(args)[:2]
        return 4.0 * q.numel() * k.shape[-2]
    return 0.0
