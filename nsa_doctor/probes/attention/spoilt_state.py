"""Whether a step spoils the state that it was given, though it returns another one."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.write_lines import WriteLines
from nsa_doctor.probes.internal import memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state_fields import fields_of, kept
from nsa_doctor.probes.numerics.compare import Departure, departure

_ROUNDINGS = 1e4  # as where two runs are followed to where they part


@dataclass(frozen=True)
class Spoilt:
    """A field of the state given that a step wrote into and returned elsewhere, where, and what it does to another."""

    field: str
    place: Place
    departure: Departure


def spoilt_state(sp: BuiltModule, prompt: int) -> Spoilt | None:
    """What a step leaves behind in the state of a prompt, where another step from that state departs for it.

    A state that is the next one too, or shares its memory, is written into on purpose.
    """
    x = sp.input(prompt + 2)
    state = _after(sp, x[:, :prompt])
    before, fields = kept(fields_of(state, "state")), fields_of(state, "state")
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watcher = WriteLines([field.value for field in fields.values() if isinstance(field.value, Tensor)], places)
    with watcher, places.watching():
        following = fields_of(_step(sp, x[:, prompt : prompt + 1], state)[1], "state")
    written = [path for path in fields if path in following and _is_spoilt(before, fields, following, path)]
    if not written:
        return None
    other = x[:, prompt + 1 :]
    right = _step(sp, other, _after(sp, x[:, :prompt]))[0]
    found = _step(sp, other, state)[0]
    allowed = float(right.abs().max()) * _ROUNDINGS * torch.finfo(right.dtype).eps
    departed = departure(found, right, torch.full(right.shape[:2], allowed, device=right.device))
    value = fields[written[0]].value
    assert isinstance(value, Tensor)
    return None if departed is None else Spoilt(written[0], watcher.line_of(value), departed)


def _is_spoilt(before: Any, fields: Any, following: Any, path: str) -> bool:
    """Whether a tensor was written into though the state that follows has its own in another place."""
    was, value, now = before[path].value, fields[path].value, following[path].value
    if not all(isinstance(each, Tensor) for each in (was, value, now)) or was.shape != value.shape:
        return False
    return memory_of(value) != memory_of(now) and not torch.equal(was.nan_to_num(), value.nan_to_num())


def _after(sp: BuiltModule, x: Tensor) -> Any:
    prefill = sp.subject.prefill
    assert prefill is not None
    with torch.no_grad():
        return ask("prefill", lambda: prefill(sp.module, x.clone()), sp.module)[1]


def _step(sp: BuiltModule, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    step = sp.subject.step
    assert step is not None
    with torch.no_grad():
        output, following = ask("step", lambda: step(sp.module, x.clone(), state), sp.module)
        return output.clone(), following
