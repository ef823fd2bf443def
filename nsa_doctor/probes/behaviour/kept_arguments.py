"""Tensors that a forward takes beside its input, and calls that are answered with what an earlier one was given.

What a module keeps of a call by shape alone is kept of its arguments too, such as times, positions or a mask. A call on
a module that was called before is compared with the same on a fresh one; streams, which answer two equal calls
differently, and what a method of the module resets are left alone.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.optional_arguments import giving_instead, is_another, of_rows, of_vectors, words_of
from nsa_doctor.probes.hooks.lines_apart import at_line_apart, owned
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_OF_STATE = frozenset(  # words of what is handed from call to call, of what is asked for, and of answers
    {
        *("cache", "caches", "past", "state", "states", "mem", "mems", "memory", "hidden", "loss", "target", "targets"),
        *("label", "labels", "return", "output", "outputs", "use", "generator", "seed", "rng", "inplace", "training"),
        *("session", "kv", "cu", "seqlens", "graph", "edge", "edges", "ptr", "y", "ys", "tgt", "prev", "previous"),
    }
)
_OF_MASKS = frozenset({"mask", "masks", "keep", "valid", "padding", "allowed", "visible", "segment", "segments"})
_RESETS = re.compile(r"_{0,2}(reset|clear|flush|forget|invalidate|empty)(_\w+)?")
_OF_WEIGHTS = re.compile(r"param|weight")
_MOST_ARGUMENTS, _MOST_FORMS = 8, 12
_MORE_ROWS = (31, 43, 37)  # that no other call has

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Kept:
    """An argument whose values of an earlier call answer for those of a later one; by how much, and where."""

    name: str
    shape: torch.Size
    length: int
    error: float
    place: Place

    @property
    def evidence(self) -> dict[str, str | int | float | bool | None]:
        """The argument, and by how much the answers differ."""
        return {"argument": self.name, "error": self.error}

    @property
    def text(self) -> str:
        """What is wrong, in words."""
        return (
            f"after a call with other values of {self.name} {list(self.shape)}, a call at S={self.length} gives "
            f"another output than a first call, by {self.error:.2g}: what is kept of {self.name} is kept by its shape"
        )


def kept_arguments(subject: Subject, length: int, rows: int) -> Iterator[Kept]:
    """Those arguments of the forward of the module, with inputs of so many rows and tokens."""
    sp = comparable_module(subject)
    parameters = attempt(lambda: inspect.signature(sp.module.forward).parameters)
    if isinstance(parameters, Caught) or len(parameters) < 2:
        return
    x = sp.input(length, rows)
    passed = _passed(sp, x)
    asked = [name for name, each in parameters.items() if each.default is None or name in passed]
    asked = [name for name in asked if not _OF_STATE & words_of(name)]
    for name in asked[:_MOST_ARGUMENTS]:
        value = passed.get(name)
        if value is not None and value.shape == x.shape and torch.equal(value, x):
            continue
        forms = [(value, _other(value))] if value is not None else _forms(sp, x, words_of(name))
        taken = (pair for pair in forms[:_MOST_FORMS] if _is_taken(sp, x, name, pair))
        found = (attempt(partial(_kept, subject, x, name, pair)) for pair in taken)
        first = next((each for each in found if each is not None), None)
        if isinstance(first, Kept):
            yield first


def _passed(sp: BuiltModule, x: Tensor) -> dict[str, Tensor]:
    """The tensors that the subject itself gives the module in a call."""
    given: dict[str, Tensor] = {}

    def note(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        given.update({name: each.clone() for name, each in bound.items() if isinstance(each, Tensor)})

    handle = sp.module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        attempt(lambda: sp(x))
    finally:
        handle.remove()
    return given


def _other(value: Tensor) -> Tensor:
    """Other values of the same kind and shape."""
    if value.is_floating_point():
        return value * 1.5 + 0.25 * torch.arange(value.shape[-1] if value.ndim else 1).to(value).reshape(
            value.shape[-1:]
        )
    return value.flip(-1) if value.ndim else value


def _forms(sp: BuiltModule, x: Tensor, words: set[str]) -> list[Pair]:
    """Two values each, of every shape and kind that an argument of that name may be of."""
    rows, length = x.shape[:2]
    place = torch.arange(length, device=x.device)
    if _OF_MASKS & words:
        ends = torch.arange(rows, device=x.device)[:, None]
        first, second = place < length - 2 - ends, place < length - 3 - 2 * ends
        masks = [(one, two) for one, two in ((first, second), (first[:, None], second[:, None]))]
        masks += [(first[:, None] & _before(place), second[:, None] & _before(place))]
        masks += [(first[:, None, None], second[:, None, None]), (first[0], second[0])]
        masks += [(_before(place), _before(place) & ~_before(place - 4))]
        return [*masks, *((one.long(), two.long()) for one, two in masks[:1])]
    generator = torch.Generator().manual_seed(sp.subject.seed)
    dtype = x.dtype if x.is_floating_point() else getattr(torch, sp.dtype)
    first, second = (
        (0.2 + torch.rand(rows, length, generator=generator)).cumsum(1).to(x.device, dtype) for _ in range(2)
    )
    whole = place.expand(rows, -1).contiguous(), (place // 2).expand(rows, -1).contiguous()
    forms = [(first, second), whole, (first[0], second[0]), (whole[0][0], whole[1][0])]
    forms += [(_gaps(first), _gaps(second)), (_gaps(first)[0], _gaps(second)[0]), (_gaps(whole[0]), _gaps(whole[1]))]
    forms += [(first[..., None].expand(-1, -1, n), second[..., None].expand(-1, -1, n)) for n in (1, 2, 3)]
    of_row = [make(x) for make in (*of_rows(words), *of_vectors(sp, words))]
    return [*((each, each.roll(1, 0)) for each in of_row), *forms]


def _before(place: Tensor) -> Tensor:
    return place[:, None] >= torch.arange(len(place), device=place.device)


def _gaps(times: Tensor) -> Tensor:
    return (times[..., :, None] - times[..., None, :]).abs()


def _is_taken(sp: BuiltModule, x: Tensor, name: str, pair: Pair) -> bool:
    answers = [attempt(partial(_given, sp, x, name, value)) for value in pair]
    return all(isinstance(each, Tensor) and bool(each.isfinite().all()) for each in answers)


def _given(sp: BuiltModule, x: Tensor, name: str, value: Tensor) -> Tensor:
    with giving_instead(sp.module, {name: value.clone()}):
        return sp(x)


def _kept(subject: Subject, x: Tensor, name: str, pair: Pair) -> Kept | bool | None:
    """What a call keeps of this argument, False where it keeps nothing of it; None where its values do not matter."""
    fresh, used, again = (comparable_module(subject) for _ in range(3))
    call: Callable[[BuiltModule, Tensor], Tensor] = lambda sp, value: _given(sp, x, name, value)  # noqa: E731
    first, answer = (call(used, value) for value in pair)
    expected = call(fresh, pair[1])
    if not is_another(first, expected):
        return _kept_for_all(fresh, x, name, pair, expected)
    if not is_another(answer, expected):
        return False
    if any(is_another(first, call(again, pair[0])) for _ in range(2)):
        return False  # a stream, or by chance
    if _is_reset(used) and not is_another(call(used, pair[1]), expected):
        return False
    if attempt(partial(_is_kept_of_any_shape, subject, x, name, pair, expected)) is True:
        return False
    new, old = (comparable_module(subject) for _ in range(2))
    call(old, pair[0])
    place = at_line_apart(subject, Place(), lambda: call(new, pair[1]), lambda: call(old, pair[1]))
    place = owned(subject, fresh.module, place) if place.file else definition_place(fresh.module)
    return Kept(name, pair[0].shape, x.shape[1], float((answer - expected).abs().max()), place)


def _is_kept_of_any_shape(subject: Subject, x: Tensor, name: str, pair: Pair, expected: Tensor) -> bool:
    """Whether a call of other shapes before changes the answer too, as where the first call sets what is kept."""
    rows, length = (size - 1 for size in x.shape[:2])
    less = pair[0]
    for axis, size in enumerate(less.shape):
        less = less.narrow(axis, 0, size - 1) if size in (rows + 1, length + 1) else less
    sp = comparable_module(subject)
    _given(sp, x[:rows, :length], name, less)
    return less.shape != pair[0].shape and is_another(_given(sp, x, name, pair[1]), expected)


def _kept_for_all(sp: BuiltModule, x: Tensor, name: str, pair: Pair, expected: Tensor) -> Kept | None:
    """What all modules keep together, which answers for a fresh one too: other numbers of rows are not known yet.

    Of these two agree on what the rows are with the value, and another value gives something else.
    """
    rows = len(x)
    if sp.subject.is_slow or any(value.shape[:1] != (rows,) for value in pair):
        return None

    def among(number: int, value: Tensor) -> Tensor:
        more = torch.arange(number, device=x.device) % rows
        return _given(sp, x[more], name, value[more])[:rows]

    answer, again, other = (among(number, pair[which]) for number, which in zip(_MORE_ROWS, (1, 1, 0), strict=True))
    if is_another(answer, again) or not is_another(answer, other) or not is_another(answer, expected):
        return None
    unknown, known = (lambda: among(_MORE_ROWS[-1] + 2, pair[1])), (lambda: _given(sp, x, name, pair[1]))
    place = at_line_apart(sp.subject, Place(), unknown, known)
    place = owned(sp.subject, sp.module, place) if place.file else definition_place(sp.module)
    return Kept(name, pair[0].shape, x.shape[1], float((answer - expected).abs().max()), place)


def _is_reset(sp: BuiltModule) -> bool:
    """Whether some method of a part that is named after it, and takes nothing, was called and came to its end."""
    called = []
    for part in sp.module.modules():
        for name in dir(type(part)):
            if _RESETS.fullmatch(name) and not _OF_WEIGHTS.search(name) and not hasattr(nn.Module, name):
                method = getattr(part, name, None)
                taken = attempt(lambda method=method: inspect.signature(method).bind())
                if callable(method) and not isinstance(taken, Caught):
                    called.append(not isinstance(attempt(method), Caught))
    return any(called)
