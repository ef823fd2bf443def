"""What a cache that is made as new gives for another prompt, beside what a new one gives."""

import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.attention.changed_cache import OF_CHANGE, floor_of
from nsa_doctor.probes.attention.decoding import SingleTokens, decode
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.state_fields import Field, fields_of, kept, put
from nsa_doctor.probes.numerics.compare import Departure, departure
from nsa_doctor.subject.contract import Subject

Step = Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]]
Start = Callable[[nn.Module, Tensor], Any]
Given = Callable[[], AbstractContextManager[None]]

_MOST_GROUPS = 32
_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True)
class ReadFrom:
    """A prompt that is read into a new cache: `start` makes one, and `into` reads tokens into any."""

    start: Start
    into: Step

    def __call__(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        """The outputs of a prompt, and the cache behind it."""
        return self.into(module, x, self.start(module, x))


@dataclass(frozen=True)
class Reset:
    """A `method` that makes a cache as new, called by `change`, and how a prompt is read into what it leaves.

    `start` makes a new one; None where nobody knows how.
    """

    change: Callable[..., Any]
    method: Callable[..., Any]
    into: Step
    start: Start | None = None

    def __call__(self, module: nn.Module, cache: Any, *rows: Tensor) -> Any:
        """The cache as new, or those rows [B] bool of it."""
        return self.change(module, cache, *rows)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The subject's own method, where a finding is placed."""
        return self.method


@dataclass(frozen=True)
class Remaining:
    """How tokens behind a reset depart from those in a new cache; `field` is the one that has to be as new for that."""

    departure: Departure
    field: str


def found_reset(seam: Callable[..., Any] | None) -> Reset | None:
    """The seam, where it was found by a name; None for one that an Adapter gives."""
    found = None if seam is None else inspect.unwrap(seam, stop=lambda each: isinstance(each, Reset))
    return found if isinstance(found, Reset) else None


def single(subject: Subject) -> Step:
    """Its step, also of several tokens where it is not known to take these."""
    step: Any = inspect.unwrap(subject.step) if subject.step is not None else None
    return step.step if isinstance(step, SingleTokens) else step


def remaining(
    sp: BuiltModule,
    earlier: Tensor,
    x: Tensor,
    prompt: int,
    change: Callable[[Any], Any],
    reset: Reset | None,
    given: tuple[Given, Given] = (nullcontext, nullcontext),
) -> Remaining | None:
    """What `x` [B, S, ...], a prompt and steps, gives in a cache of the `earlier` tokens that was made as new.

    The earlier tokens are read in the first of the regions that are `given`, and x in the second.
    """
    into = single(sp.subject) if reset is None else reset.into
    sizes = [1] * x.shape[1] if reset is None else [prompt, *[1] * (x.shape[1] - prompt)]
    with given[1]():
        right = decode(sp, x, sizes).output

    def changed() -> Any:
        with given[0]():
            held = decode(sp, earlier, [prompt, *[1] * (earlier.shape[1] - prompt)]).cache
            return ask(OF_CHANGE, lambda: change(held), sp.module)

    def departing(cache: Any) -> Departure | None:
        with given[1]():
            return departure(_read(sp, x, sizes, cache, into), right, floor_of(right))

    found, field = departing(changed()), ""
    if found is not None and reset is not None and reset.start is not None:
        start = reset.start
        with unobserved(), torch.no_grad():
            held = attempt(lambda: _kept_field(changed, lambda: start(sp.module, x), lambda c: departing(c) is None))
        field = "" if isinstance(held, Caught) else held
    return None if found is None else Remaining(found, field)


def _read(sp: BuiltModule, x: Tensor, sizes: list[int], cache: Any, into: Step) -> Tensor:
    step, outputs = sp.subject.step, list[Tensor]()
    assert step is not None
    seed_everything(sp.subject.seed)
    for index, part in enumerate(x.split(sizes, 1)):
        by = step if index else into
        with torch.no_grad():
            output, cache = ask(
                "step", lambda by=by, part=part, cache=cache: by(sp.module, part.clone(), cache), sp.module
            )
        outputs.append(output[:, -part.shape[1] :].clone())
    return torch.cat(outputs, 1)


def rows_remaining(
    sp: BuiltModule, earlier: Tensor, x: Tensor, rows: Tensor, change: Callable[[Any], Any]
) -> tuple[Departure, bool] | None:
    """What `x` [B, S, ...] gives token by token where `rows` [B] of a cache of the `earlier` tokens were made as new.

    Whether that is of these rows, or else of the others.
    """
    step, count = sp.subject.step, x.shape[1]
    assert step is not None
    alone = decode(sp, x, [1] * count).output
    sizes = [earlier.shape[1] - 1, 1]
    going_on = decode(sp, torch.cat((earlier, x), 1), [*sizes, *[1] * count]).output[:, -count:]
    held = decode(sp, earlier, sizes).cache
    cache = ask(OF_CHANGE, lambda: change(held), sp.module)
    outputs = _read(sp, x, [1] * count, cache, step)
    for chosen, right in ((rows, alone), (~rows, going_on)):
        found = departure(outputs[chosen], right[chosen], floor_of(right[chosen]))
        if found is not None:
            return found, chosen is rows
    return None


def _kept_field(changed: Callable[[], Any], new: Callable[[], Any], is_right_with: Callable[[Any], bool]) -> str:
    """The first field of all layers that, put as it is in a new cache, mends what follows, or the first of all that do.

    Empty where they do not together.
    """
    after, due = kept(fields_of(changed(), "cache")), kept(fields_of(new(), "cache"))
    groups: dict[str, list[Field]] = {}
    for path, field in after.items():
        if path not in due or _differ(field.value, due[path].value):
            groups.setdefault(_INDEX.sub("[]", path), []).append(field)
    mends = lambda fields: attempt(lambda: is_right_with(_with(changed(), fields, due))) is True  # noqa: E731
    alone = next((fields[0].path for fields in list(groups.values())[:_MOST_GROUPS] if mends(fields)), "")
    together = [field for fields in groups.values() for field in fields]
    return alone or (f"{together[0].path} and others" if mends(together) else "")


def _with(cache: Any, fields: list[Field], due: dict[str, Field]) -> Any:
    for field in fields:
        value: Any = due[field.path].value if field.path in due else None
        cache = put(cache, field.keys, value)
    return cache


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape != other.shape or not torch.equal(one, other)
    return bool(type(one) is not type(other) or one != other)
