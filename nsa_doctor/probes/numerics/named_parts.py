"""Parts and functions named for an operation that is known exactly, asked alone: whether they compute a form of it."""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.named_functions import functions_called
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.part_calls import copied, part_calls
from nsa_doctor.probes.numerics import known_curves, known_norms
from nsa_doctor.probes.numerics.divergence import answer_place, recording_of
from nsa_doctor.probes.numerics.held_choices import HeldBy, is_switch
from nsa_doctor.probes.numerics.known_others import departs_from_layer_scale
from nsa_doctor.probes.numerics.norm_weights import weights_astray
from nsa_doctor.probes.numerics.operation_names import models_among, operation_of

_LIBRARYS = 2  # the rank of its files
_LARGEST, _ENOUGH = 1 << 16, 1 << 12  # values
_FEWEST_PLACES = 4  # of an axis: one alone would be stretched over weights


@dataclass(frozen=True)
class Misnamed:
    """A part or a function by its name, the operation that it says it is, and what is seen against that, in words."""

    kind: str
    operation: str
    text: str
    place: Place


@dataclass(frozen=True)
class _Asked:
    """Something that can be asked alone, by a `call`, and what the pass gave it; `module` is it, where it is a part."""

    kind: str
    operation: str
    module: nn.Module | None
    x: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call: Callable[..., Any]

    def alone(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            answer = self.call(x.clone(), *copied(self.args), **copied(self.kwargs))
        if not isinstance(answer, Tensor):
            raise TypeError("its answer is no tensor")
        return answer

    def narrowed(self, axis: int, size: int) -> "_Asked":
        """The same with the first of that axis alone, of its input and of what else has that shape."""

        def cut(value: Any) -> Any:
            is_like_x = isinstance(value, Tensor) and value.shape == self.x.shape
            return value.narrow(axis, 0, size).clone() if is_like_x else value

        args, kwargs = tuple(map(cut, self.args)), {name: cut(each) for name, each in self.kwargs.items()}
        return replace(self, x=cut(self.x), args=args, kwargs=kwargs)

    @property
    def tensors(self) -> list[Tensor]:
        """What it is given beside its input."""
        return [each for each in (*self.args, *self.kwargs.values()) if isinstance(each, Tensor)]


def misnamed(sp: BuiltModule, length: int) -> Iterator[Misnamed]:
    """The parts and functions that a pass calls and that do not compute what their names say, one of each class."""
    frames = FrameFilter(sp.subject.packages)
    kinds = {type(module).__name__ for module in sp.module.modules()}
    parts = {
        module: (name, operation)
        for name, module in sp.module.named_modules()
        if (operation := operation_of(type(module).__name__, kinds, _models(sp, module)))
        and _is_written(module, frames)
    }
    with functions_called(frames, lambda name: bool(operation_of(name))) as functions:
        calls = part_calls(sp, parts, length, is_shape_kept=False)
    seen: set[type[nn.Module]] = set()
    for module, call in calls.items():
        name, operation = parts[module]
        if type(module) not in seen:
            seen.add(type(module))
            asked = _Asked(type(module).__name__, operation, module, call.x, call.args, call.kwargs, module)
            yield from _judged(asked, partial(_line_of_part, sp, name), sp.subject.seed)
    for each in functions:
        asked = _Asked(each.name, operation_of(each.name), None, each.x, each.args, each.kwargs, each.function)
        yield from _judged(asked, partial(_line_of, sp), sp.subject.seed)


def _judged(asked: _Asked, place_of: Callable[[_Asked], Place], seed: int) -> Iterator[Misnamed]:
    def judged() -> Misnamed | None:
        part = _cropped(asked)
        text = _departure(part, seed) if part else ""
        return Misnamed(asked.kind, asked.operation, text, place_of(part)) if part and text else None

    with unobserved():
        found = attempt(judged)  # also what it was given may answer nothing: a tensor of a transform that has ended
    if isinstance(found, Misnamed):
        yield found


def _cropped(asked: _Asked) -> _Asked | None:
    """It with one row and fewer places of what it was given, if that is much; None where it takes no less."""
    for axis in (0, *sorted(range(1, asked.x.ndim), key=lambda each: -asked.x.shape[each])):
        least = _FEWEST_PLACES if axis else 1
        size = max(least, asked.x.shape[axis] * _ENOUGH // max(1, asked.x.numel())) if axis else least
        if asked.x.numel() <= _ENOUGH or size >= asked.x.shape[axis]:
            continue
        fewer = asked.narrowed(axis, size)
        answer = attempt(lambda fewer=fewer: fewer.alone(fewer.x).shape)
        if isinstance(answer, torch.Size) and len(answer) == asked.x.ndim and answer[axis] <= size:
            asked = fewer
    return asked if asked.x.numel() <= _LARGEST else None


def _models(sp: BuiltModule, part: nn.Module) -> set[str]:
    """The names of the whole model, and of models and their configurations in the file of the part."""
    file = sys.modules.get(type(part).__module__)
    beside = dict(vars(file)) if file is not None else {}
    return {type(sp.module).__name__, *models_among([name for name, each in beside.items() if isinstance(each, type)])}


def _is_written(module: nn.Module, frames: FrameFilter) -> bool:
    """Whether its forward is written by the subject's authors or a library's, and not torch's."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and frames.rank_of(code) >= _LIBRARYS


def _departure(asked: _Asked, seed: int) -> str:
    x = asked.x
    if not torch.equal(asked.alone(x), asked.alone(x)):
        return ""  # a sample, or different from call to call
    if asked.operation in known_norms.NORMS:
        return _of_norm(asked, seed)
    module = asked.module
    if asked.operation == "layerscale":
        return "" if module is None or asked.tensors else departs_from_layer_scale(module, asked.alone, x, seed)
    if module is not None and any(True for _ in module.parameters()) and asked.operation != "swish":
        return ""
    if asked.operation in known_curves.GATES:
        return _of_gate(asked, seed)
    if asked.tensors or asked.alone(x).shape != x.shape:
        return ""
    code = HeldBy(asked.call if module is None else module)
    numbers = [*(vars(module).values() if module is not None else ()), *asked.args, *asked.kwargs.values()]
    is_learnt = any(isinstance(each, float) for each in numbers) or any(
        True for _ in (module.parameters() if module is not None else ())
    )
    return known_curves.departs_from_curve(asked.operation, asked.alone, x, is_learnt or code.has_numbers, is_learnt)


def _of_gate(asked: _Asked, seed: int) -> str:
    module, others = asked.module, asked.tensors
    held = HeldBy(asked.call if module is None else module)
    given = [*asked.args, *asked.kwargs.values()]
    if any(is_switch(each) for each in given):
        return ""
    if asked.operation == "glu" and (held.has_switch or (module is not None and any(True for _ in module.children()))):
        return ""
    is_adjustable = held.has_numbers or any(isinstance(each, float) for each in given)
    x = known_curves.gated_values(asked.x, seed)
    if not others:
        answer = asked.alone(x)
        halves = known_curves.halves_of(x, answer)
    elif len(others) == 1 and others[0].shape == x.shape:
        gate = known_curves.gated_values(x, seed + 1)
        args = [gate if each is others[0] else each for each in asked.args]
        named = {name: gate if each is others[0] else each for name, each in asked.kwargs.items()}
        with torch.no_grad():
            answer = asked.call(x.clone(), *args, **named)
        halves = [(x, gate)] if isinstance(answer, Tensor) and answer.shape == x.shape else []
    else:
        return ""
    return known_curves.departs_from_gate(asked.operation, answer, halves, is_adjustable) if halves else ""


def _of_norm(asked: _Asked, seed: int) -> str:
    x = asked.x
    module = asked.module
    is_plain = all(_is_a_norm(each) for each in module.children()) if module is not None else True
    if not is_plain or any(each.shape == x.shape or each.ndim > 1 for each in asked.tensors) or _is_half(x):
        return ""
    if module is not None and asked.tensors:
        return ""  # a condition, or a mask
    given = known_norms.values_for_norms(x, seed)
    found = known_norms.fitted(asked.operation, given, asked.alone)
    if found is None or (module is not None and _has_inner_of_less(asked)):
        return ""
    affine, normed = found
    if not known_norms.agrees(affine):
        smaller = known_norms.values_for_norms(x, seed, known_norms.SMALLER)
        again = known_norms.fitted(asked.operation, smaller, asked.alone)
        if again is None or known_norms.agrees(again[0]) or known_norms.is_of_another_kind(given, asked.alone):
            return ""
        definition = known_norms.DEFINITIONS[asked.operation]
        return (
            f"its values stray by {affine.departure:.2g} of their spread from {definition}, scaled and shifted at will"
        )
    if module is None:
        return ""
    return weights_astray(module, lambda: torch.stack([asked.alone(each).double() for each in given]), normed)


def _has_inner_of_less(asked: _Asked) -> bool:
    """Whether a norm within it is given another number of values than it is: lengths of vectors, a share of them."""
    sizes: list[int] = []

    def note(_: nn.Module, args: tuple[Any, ...]) -> None:
        sizes.extend(each.numel() for each in args[:1] if isinstance(each, Tensor))

    inner = asked.module.children() if asked.module is not None else ()
    handles = [each.register_forward_pre_hook(note) for each in inner]
    try:
        asked.alone(asked.x)
    finally:
        for handle in handles:
            handle.remove()
    return any(size != asked.x.numel() for size in sizes)


def _is_a_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity) or operation_of(type(module).__name__) in known_norms.NORMS


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.float16


def _line_of_part(sp: BuiltModule, name: str, asked: _Asked) -> Place:
    return answer_place(sp, name, partial(asked.alone, asked.x))


def _line_of(sp: BuiltModule, asked: _Asked) -> Place:
    """The line of a function that makes its answer; where it is defined, if none is seen."""
    recording = recording_of(sp, lambda: asked.alone(asked.x))
    made = recording.output_maker
    place = recording.operations[made].place if made >= 0 else Place()
    code = inspect.unwrap(asked.call).__code__
    return place if place.file else Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
