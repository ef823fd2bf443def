"""How many tokens each attention sees, beside the window that its module or its configuration declares."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.score_watch import Softmax, softmaxes
from nsa_doctor.probes.model.built_module import BuiltModule

# Counted with the token itself by what uses the name, or by some without it.
_WITH_ITSELF, _EITHER_WAY = ("sliding_window",), ("window", "window_size", "attention_window", "local_window", "win")
_HOLDERS = ("config", "cfg", "args")
_MOST, _PAST = 1024, 9


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


def declared_windows(sp: BuiltModule) -> dict[str, int]:
    """The windows shorter than its sequences that the module, its parts or their configurations declare, by name."""
    most = min(_MOST, sp.subject.max_length - _PAST)
    return {name: value for name, value in _declared(sp.module) if 1 < value <= most}


def other_windows(sp: BuiltModule) -> Iterator[Window]:
    """Each attention that sees one token more or fewer than a declared window."""
    declared = declared_windows(sp)
    length = max(declared.values(), default=0) + _PAST
    for each in softmaxes(sp, sp.input(length))[0]:
        seen = _seen(each, length) if each.is_of_tokens(length) else 0
        for name, value in declared.items():
            if seen - value in (-1, 1) and seen not in declared.values():
                yield Window(name, value, seen, each.place)


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
