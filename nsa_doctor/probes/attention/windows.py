"""How many tokens each attention sees, beside the window that its module or its configuration declares."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import MASKED, Softmax, softmaxes
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher, untraced
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import tensors_in

# Counted with the token itself by what uses the name, or by some without it.
_WITH_ITSELF, _EITHER_WAY = ("sliding_window",), ("window", "window_size", "attention_window", "local_window", "win")
_HOLDERS = ("config", "cfg", "args")
_MOST, _PAST = 1024, 9
_MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Window:
    """A declared window, by the name it has there, and the number of tokens that one attention sees."""

    name: str
    declared: int
    seen: int
    place: Place

    @property
    def is_wrong(self) -> bool:
        """Whether no way to count explains it."""
        return self.name in _WITH_ITSELF or self.seen != self.declared + 1


def declared_windows(sp: BuiltModule) -> list[tuple[str, int]]:
    """The windows shorter than its sequences that the module, its parts or their configurations declare, with names."""
    most = min(_MOST, sp.subject.max_length - _PAST)
    return list(dict.fromkeys(each for each in _declared(sp.module) if 1 < each[1] <= most))


def other_windows(sp: BuiltModule) -> list[Window]:
    """Each attention that sees one token more or fewer than a declared window, those first that nothing explains."""
    declared = declared_windows(sp)
    values = {value for _, value in declared}
    length, found = max(values, default=0) + _PAST, []
    for each in softmaxes(sp, sp.input(length))[0]:
        seen = _seen(each, length) if each.is_of_tokens(length) else 0
        for name, value in declared:
            if seen - value in (-1, 1) and seen not in values:
                found.append(Window(name, value, seen, each.place))
    return sorted(found, key=lambda window: not window.is_wrong)


def place_of(sp: BuiltModule, window: Window) -> Place:
    """Where the first mask that ends at such a window is made; where the weights are, if there is none."""
    watch = _Bands(sp, window)
    with torch.no_grad(), unobserved(), sdpa_kernel(SDPBackend.MATH), watch.places.watching(), watch:
        sp(sp.input(window.declared + _PAST))
    return watch.found or window.place


def _declared(module: nn.Module) -> Iterator[tuple[str, int]]:
    for part in module.modules():
        for holder in (part, *(getattr(part, name, None) for name in _HOLDERS)):
            values = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
            for name in (*_WITH_ITSELF, *_EITHER_WAY):
                if type(value := values.get(name)) is int:
                    yield name, value


def _seen(softmax: Softmax, length: int) -> int:
    """How many tokens the later queries see up to their own, one after another; 0 where they do not agree."""
    seen = softmax.seen
    t = torch.arange(length, device=seen.device)
    oldest = torch.where(seen, t, length).amin(1)
    counts = seen.sum(1)
    reach = int(t[-1] - oldest[-1]) + 1
    is_window = bool((counts[reach:] == reach).all()) and bool((t - oldest + 1 == reach)[reach:].all())
    return reach if is_window and reach < length - 1 and bool(seen.diagonal().all()) else 0


class _Bands(DispatchWatcher):
    """Looks for the first result of the subject's own lines that ends where a window does."""

    def __init__(self, sp: BuiltModule, window: Window) -> None:
        super().__init__()
        self.found: Place | None = None
        self.places = Places(FrameFilter(sp.subject.packages))
        self.places.know(sp.module)
        self._length, self._seen = window.declared + _PAST, window.seen

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; keep its place where its result is the first."""
        result = func(*args, **kwargs)
        if self.found is None:
            with untraced():
                is_band = any(_ends_at(each, self._seen, self._length) for each in tensors_in(result))
                place = self.places.here()[0] if is_band else None
            self.found = place if place is not None and place.file else None
        return result


def _ends_at(mask: Tensor, seen: int, length: int) -> bool:
    """Whether queries and keys, as many or more, are hidden from each other from just so many on, or the reverse."""
    is_square = mask.ndim > 1 and mask.shape[-1] == mask.shape[-2] >= length
    if not is_square or not 0 < mask.numel() <= _MOST_ELEMENTS:
        return False
    if mask.dtype != torch.bool and not mask.is_floating_point():
        return False
    one = mask.detach().flatten(0, -3)[0] if mask.ndim > 2 else mask.detach()
    shown = one if one.dtype == torch.bool else one > MASKED
    last, beyond = (shown.diagonal(-offset) for offset in (seen - 1, seen))
    return bool((last == last[0]).all()) and bool((beyond != last[0]).all())
