"""Parts and functions named for an operation that is known exactly, asked alone: whether they compute a form of it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from nsa_doctor.probes.model.part_calls import part_calls
from nsa_doctor.probes.numerics import known_curves, known_norms
from nsa_doctor.probes.numerics.divergence import answer_place, recording_of
from nsa_doctor.probes.numerics.known_others import departs_from_layer_scale, departs_from_softmax
from nsa_doctor.probes.numerics.norm_weights import weights_astray
from nsa_doctor.probes.numerics.operation_names import operation_of

_LIBRARYS = 2  # the rank of its files
_LARGEST = 1 << 21  # values


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
            answer = self.call(x.clone(), *self.args, **self.kwargs)
        if not isinstance(answer, Tensor):
            raise TypeError("its answer is no tensor")
        return answer

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
        if (operation := operation_of(type(module).__name__, kinds)) and _is_written(module, frames)
    }
    with functions_called(frames, lambda name: bool(operation_of(name))) as functions:
        calls = part_calls(sp, parts, length, is_shape_kept=False)
    seen: set[type[nn.Module]] = set()
    for module, call in calls.items():
        name, operation = parts[module]
        if type(module) not in seen and call.x.numel() <= _LARGEST:
            seen.add(type(module))
            asked = _Asked(type(module).__name__, operation, module, call.x, call.args, call.kwargs, module)
            place = lambda name=name, asked=asked: answer_place(sp, name, partial(asked.alone, asked.x))  # noqa: E731
            yield from _judged(asked, place, sp.subject.seed)
    for each in functions:
        if each.x.numel() <= _LARGEST:
            asked = _Asked(each.name, operation_of(each.name), None, each.x, each.args, each.kwargs, each.function)
            yield from _judged(asked, lambda asked=asked: _line_of(sp, asked), sp.subject.seed)


def _judged(asked: _Asked, place: Callable[[], Place], seed: int) -> Iterator[Misnamed]:
    with unobserved():
        text = attempt(lambda: _departure(asked, seed))
        where = place() if isinstance(text, str) and text else None
    if isinstance(text, str) and where is not None:
        yield Misnamed(asked.kind, asked.operation, text, where)


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
    if asked.operation == "softmax":
        return departs_from_softmax(asked.alone, x, seed)
    numbers = [*(vars(module).values() if module is not None else ()), *asked.args, *asked.kwargs.values()]
    is_adjustable = any(isinstance(each, float) for each in numbers) or any(
        True for _ in (module.parameters() if module is not None else ())
    )
    return known_curves.departs_from_curve(asked.operation, asked.alone, x, is_adjustable)


def _of_gate(asked: _Asked, seed: int) -> str:
    module, others = asked.module, asked.tensors
    if asked.operation == "glu" and module is not None and _has_activation(module):
        return ""
    if asked.operation == "glu" and any(callable(each) or isinstance(each, str) for each in asked.args):
        return ""
    x = known_curves.gated_values(asked.x, seed)
    if not others:
        answer = asked.alone(x)
        halves = known_curves.halves_of(x, answer)
    elif len(others) == 1 and others[0].shape == x.shape:
        gate = known_curves.gated_values(x, seed + 1)
        given = [gate if each is others[0] else each for each in asked.args]
        named = {name: gate if each is others[0] else each for name, each in asked.kwargs.items()}
        with torch.no_grad():
            answer = asked.call(x.clone(), *given, **named)
        halves = [(x, gate)] if isinstance(answer, Tensor) and answer.shape == x.shape else []
    else:
        return ""
    return known_curves.departs_from_gate(asked.operation, answer, halves) if halves else ""


def _has_activation(module: nn.Module) -> bool:
    """Whether it holds what its gate goes through, and so may be given any."""
    own = [value for name, value in vars(module).items() if not name.startswith("_") and name != "training"]
    return any(True for _ in module.children()) or any(callable(each) or isinstance(each, str) for each in own)


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
    if found is None:
        return ""
    affine, normed = found
    if not known_norms.agrees(affine):
        definition = known_norms.DEFINITIONS[asked.operation]
        return (
            f"its values stray by {affine.departure:.2g} of their spread from {definition}, scaled and shifted at will"
        )
    if module is None:
        return ""
    return weights_astray(module, lambda: torch.stack([asked.alone(each).double() for each in given]), normed)


def _is_a_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity) or operation_of(type(module).__name__) in known_norms.NORMS


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.float16


def _line_of(sp: BuiltModule, asked: _Asked) -> Place:
    """The line of a function that makes its answer; where it is defined, if none is seen."""
    recording = recording_of(sp, lambda: asked.alone(asked.x))
    made = recording.output_maker
    place = recording.operations[made].place if made >= 0 else Place()
    code = inspect.unwrap(asked.call).__code__
    return place if place.file else Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
