"""The state that one way of feeding a prompt leaves, against that of another way: which fields differ, which matter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.attention.decode_origin import Origin
from nsa_doctor.probes.attention.decoding import answer_to_part, departing_line, departing_module, guilty_module
from nsa_doctor.probes.hooks.field_writers import FieldWriters, Write
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.state_fields import Field, fields_of, kept, module_fields, put
from nsa_doctor.probes.numerics.compare import Baseline, Departure
from nsa_doctor.probes.numerics.field_difference import FieldDifference, difference, written_dimension

_SHORT_PROMPT, _PARTS = 5, (3, 17)
Edit = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Way:
    """Fed in parts of `sizes` and then token by token: the state after `at` tokens and one before, and all outputs.

    `output` [B, N, ...] is of the N tokens at `tokens`, `earlier` the state one token before.
    """

    name: str
    sizes: tuple[int, ...]
    at: int
    output: Tensor
    tokens: Sequence[int]
    fields: Mapping[str, Field]
    earlier: Mapping[str, Field] = field(default_factory=dict)

    def after(self, at: int) -> Tensor:
        """Outputs of the tokens from `at` on."""
        return self.output[:, sum(token < at for token in self.tokens) :]


class Ways:
    """Feeds one input in many ways, each time to the module as it was."""

    def __init__(self, sp: BuiltModule, x: Tensor, whole: Baseline) -> None:
        self.sp, self.x, self.whole = sp, x, whole
        self._state = ModuleState(sp.module)
        self._start = kept(module_fields(sp.module, "module"))

    def way(self, name: str, sizes: Sequence[int], edit: Edit | None = None, until: int | None = None) -> Way:
        """Feed the first parts, note the state, edit it where asked to, and go on token by token, at most `until`."""
        at, fields, earlier = sum(sizes), dict[str, Field](), dict[str, Field]()

        def between(module: nn.Module, cache: Any, end: int) -> Any:
            nonlocal fields, earlier
            if end == at - 1:
                earlier = kept(self._fields(module, cache))
            if end == at:
                cache = cache if edit is None else edit(module, cache)
                fields = kept(self._fields(module, cache))
            return cache

        output, tokens = self._fed([*sizes, *[1] * ((until or self.x.shape[1]) - at)], between)
        return Way(name, tuple(sizes), at, output, tokens, fields, earlier)

    def quietly(self, name: str, sizes: Sequence[int]) -> Way | None:
        """The same, None where the subject refuses it."""
        with unobserved():
            try:
                return self.way(name, sizes)
            except SubjectFailedError:
                return None

    def with_fields(self, base: Way, other: Way, differences: Sequence[FieldDifference], until: int) -> Way | None:
        """`base` up to a token with these fields as `other` left them; None where they have no place in it."""

        def edit(module: nn.Module, cache: Any) -> Any:
            for each in differences:
                replacement = other.fields[each.path]
                in_module = each.path.startswith("module.")
                target = put(module if in_module else cache, replacement.keys, replacement.value)
                cache = cache if in_module else target
            return cache

        with unobserved():
            edited = attempt(lambda: self.way(base.name, base.sizes, edit, until))
        if isinstance(edited, Caught):
            if isinstance(edited.error, KeyboardInterrupt):
                raise edited.error
            return None
        return edited

    def writers(self, way: Way, differences: Sequence[FieldDifference]) -> dict[str, tuple[Write, Write]]:
        """By path, who computed and who wrote what these fields hold at the first position that differs.

        Of what nobody wrote there, who wrote last elsewhere in the field.
        """
        found, frames = dict[str, tuple[Write, Write]](), FrameFilter(self.sp.subject.packages)
        places = Places(frames)
        places.know(self.sp.module)
        watcher = FieldWriters(places, frames)

        def between(module: nn.Module, cache: Any, end: int) -> Any:
            if end == way.at:
                held = self._fields(module, cache)
                for each in differences:
                    value = held[each.path].value if each.path in held else None
                    write = _writes(watcher, value, each) if isinstance(value, Tensor) else None
                    found.update({} if write is None else {each.path: write})
            return cache

        with watcher.watching():
            self._fed(way.sizes, between)
        return found

    def guilty(self, way: Way) -> Origin | None:
        """Where outputs of the tokens that made the state come to differ from one pass over all.

        None where they do not differ, and where it is not seen in which part of the module.
        """
        token = self.first_before(way)
        if token is None:
            return None
        x = self.x[:, : way.at]
        self._state.restore()
        found = departing_line(self.sp, x, way.sizes, token)
        self._state.restore()
        path = departing_module(self.sp, x, way.sizes, token)
        self._state.restore()
        if found is None and path is not None:
            found = Origin(guilty_module(self.sp, x, way.sizes, token), is_of_positions=False)
            self._state.restore()
        if found is None or path is None:
            return found
        kind = type(part_at(self.sp.module, path)).__name__
        return replace(found, place=replace(found.place, module=path, module_class=kind))

    def depart(self, one: Way, other: Way) -> Departure | None:
        """How what follows differs between two ways, beyond rounding."""
        here, there = one.after(one.at), other.after(one.at)
        count = min(here.shape[1], there.shape[1])
        tokens = slice(one.at, one.at + count)
        return self.whole.departure(here[:, :count], tokens=tokens, expected=there[:, :count])

    def wrong_and_right(self, way: Way, other: Way) -> tuple[Way, Way]:
        """The one that differs from one pass over all while the other does not: already, or in what follows."""
        for differs in (self.first_before, self.departs):
            if differs(way) is None and differs(other) is not None:
                return other, way
            if differs(way) is not None and differs(other) is None:
                break
        return way, other

    def departs(self, way: Way) -> Departure | None:
        """How what follows differs from one pass over all."""
        return self.whole.departure(way.after(way.at), tokens=slice(way.at, None))

    def first_before(self, way: Way) -> int | None:
        """The first token, among those that made the state, whose output differs from one pass over all."""
        count = way.output.shape[1] - way.after(way.at).shape[1]
        tokens: Any = list(way.tokens[:count])
        found = self.whole.departure(way.output[:, :count], tokens=tokens)
        return None if found is None else tokens[found.first_token]

    def _fields(self, module: nn.Module, cache: Any) -> dict[str, Field]:
        """Of the cache all, of the module what is other than it was."""
        own = module_fields(module, "module")
        changed = {path: each for path, each in own.items() if not _same(each, self._start.get(path))}
        return {**fields_of(cache, "cache"), **changed}

    def _fed(self, sizes: Sequence[int], between: Callable[[nn.Module, Any, int], Any]) -> tuple[Tensor, list[int]]:
        """Outputs, and which tokens they are of."""
        self._state.restore()
        seed_everything(self.sp.subject.seed)
        outputs, tokens = list[Tensor](), list[int]()
        cache, end = None, 0
        with torch.no_grad():
            for part in self.x[:, : sum(sizes)].split(list(sizes), dim=1):
                width = outputs[0].shape[2:] if outputs else None
                output, cache = answer_to_part(self.sp, part, cache, is_prompt=end == 0, width=width)
                end += part.shape[1]
                num_answered = min(output.shape[1], part.shape[1])  # some answer for the last token alone
                outputs.append(output[:, -num_answered:].clone())
                tokens += range(end - num_answered, end)
                cache = between(self.sp.module, cache, end)
        self._state.restore()
        return torch.cat(outputs, dim=1), tokens


def ways_to_feed(length: int) -> list[tuple[str, list[int]]]:
    """Names and sizes of parts, the first a prompt: at once, from a short prompt on, and several tokens at a time."""
    ways = [("a prompt at once", [length])]
    if length > _SHORT_PROMPT:
        ways.append(
            (f"a prompt of {_SHORT_PROMPT} and then single ones", [_SHORT_PROMPT, *[1] * (length - _SHORT_PROMPT)])
        )
    parts = ([min(size, length - start) for start in range(0, length, size)] for size in _PARTS if size < length)
    return ways + [(f"parts of {sizes[0]}", sizes) for sizes in parts]


def differences(one: Way, other: Way, history: Way) -> list[FieldDifference]:
    """The fields that two ways leave different; `history` was fed token by token and knows where a token is written."""
    found: list[FieldDifference] = []
    for path in dict.fromkeys((*one.fields, *other.fields)):
        dimension = written_dimension(history.earlier.get(path), history.fields.get(path))
        apart = difference(path, one.fields.get(path), other.fields.get(path), dimension)
        found += [] if apart is None else [apart]
    return found


def _same(one: Field, other: Field | None) -> bool:
    if other is None or type(one.value) is not type(other.value):
        return False
    if not isinstance(one.value, Tensor) or not isinstance(other.value, Tensor):
        return bool(one.value == other.value)
    return one.value.shape == other.value.shape and torch.equal(one.value, other.value)


def _writes(watcher: FieldWriters, value: Tensor, apart: FieldDifference) -> tuple[Write, Write] | None:
    found = watcher.of(_at(value, apart))
    return watcher.of(value) if found is None or found[0].only_allocates else found


def _at(value: Tensor, apart: FieldDifference) -> Tensor:
    """The part of the field that differs first."""
    if apart.dimension is None or apart.position is None or apart.position >= value.shape[apart.dimension]:
        return value
    return value.narrow(apart.dimension, apart.position, 1)
