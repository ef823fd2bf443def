"""Modules that bear the name of a norm over features, called alone: whether one token's answer depends on another's.

Each is called on values of the shape that a pass hands it, with one token scaled. Which axis holds tokens is read off
two passes of unlike lengths; which holds features, off what one of its weights changes.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.recording import Operation
from nsa_doctor.probes.internal import NORMS_BY_BATCH
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.part_calls import PartCall, part_calls
from nsa_doctor.probes.numerics.divergence import answer_place, recording_of

_NAME = re.compile(r"(layer|rms|scale)_?norm(ali[sz]ation)?(gated|fp32|\d[dD]?)?$", re.IGNORECASE)
# One whose attribute's name says what it normalises.
_NEUTRAL = re.compile(r"(custom|my)?norm(ali[sz]ation|ali[sz]er?|layer)?", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"(^|_)(layer_?norm|rms_?norm|ln)(_?\d+)?$")
# Words of a name, an option or an argument by which a norm says that it means other axes too.
_OF_OTHER_AXES = re.compile(
    r"all|batch|complex|cumulative|edge|equivariant|frame|full|global|graph|group|heads?|image|instance|irreps|joint"
    r"|int|lengths?|mask(ed)?|nodes?|pair|patch|point|ptr|quant|quantized|quaternion|segment|seq|sequence|set|spatial|sync|temporal|time"
    r"|tokens?|utterance|vec|vector|whole"
)
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_AXES = re.compile(r"(^|_)(dims?|axis|axes)$")
_HEADS = re.compile(r"heads?(_per_\w+|_local)?$")
_GROUPED = (nn.GroupNorm, NORMS_BY_BATCH)
_OWN = 3  # the rank of the subject's own files
_SECOND = 34  # tokens more of the second pass
_TIMES = 4.0
_LEAST = 0.02  # of the size of the answers: an epsilon moves them by less
_FEWEST_BESIDE = 4  # a vector has two or three components
_WITH_BESIDE = 4  # dimensions


@dataclass(frozen=True)
class MixingNorm:
    """A norm, how it answers alone, and values of which the last token along `axis` alone is larger in `other`.

    `change` is how far the answers at the tokens before move, where these are of the size `size`.
    """

    name: str
    module: nn.Module
    alone: Callable[[Tensor], Tensor]
    x: Tensor
    other: Tensor
    axis: int
    change: float
    size: float


def mixing_norms(sp: BuiltModule, length: int) -> Iterator[MixingNorm]:
    """The norms over features that a pass calls and whose statistics are taken over several tokens; innermost alone."""
    norms = {module: name for name, module in sp.module.named_modules() if _is_over_features(sp, name, module)}
    if not norms:
        return
    called = part_calls(sp, norms, length)
    further = min(length + max(_SECOND, sp.subject.whole_multiples_of), sp.subject.max_length)
    with unobserved():
        again = attempt(lambda: part_calls(sp, norms, further)) if further > length else {}
    found: list[MixingNorm] = []
    for module, call in called.items():
        second = None if isinstance(again, Caught) else again.get(module)
        mixing = attempt(lambda module=module, call=call, second=second: _mixing(sp, module, call, second, length))
        found += [replace(mixing, name=norms[module])] if isinstance(mixing, MixingNorm) else []
    mix = {each.module for each in found}
    yield from (each for each in found if mix.isdisjoint({*each.module.modules()} - {each.module}))


def statistics_place(sp: BuiltModule, norm: MixingNorm) -> Place:
    """The line that first reduces several tokens to one number; that of the norm's output where none is seen."""
    size = norm.x.shape[norm.axis]
    if list(norm.x.shape).count(size) == 1:
        before, after = (recording_of(sp, lambda x=x: norm.alone(x)) for x in (norm.x, norm.other))
        for one, another in zip(before.operations, after.operations, strict=False):
            if _reduces(one, size) and any(map(_differ, one.results, another.results)):
                return replace(one.place, module=norm.name, module_class=type(norm.module).__name__)
    return answer_place(sp, norm.name, lambda: norm.alone(norm.x))


def _reduces(operation: Operation, size: int) -> bool:
    """Whether it makes fewer values of what it reads, and of the axis of that size nothing is left."""
    most = max((tensor.numel() for _, tensor in operation.read), default=0)
    return any(each.numel() < most and size not in each.shape for each in operation.results)


def _differ(one: Tensor, another: Tensor) -> bool:
    return one.shape == another.shape and not torch.equal(one, another)


def _is_over_features(sp: BuiltModule, name: str, module: nn.Module) -> bool:
    """Whether its names say that it normalises features, and nothing of it says otherwise."""
    kind, attribute = type(module), next((each for each in reversed(name.split(".")) if not each.isdigit()), "")
    names_it = _NAME.search(kind.__name__) or (_NEUTRAL.fullmatch(kind.__name__) and _ATTRIBUTE.search(attribute))
    if not names_it or any(isinstance(each, _GROUPED) for each in module.modules()):
        return False
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    if code is None or FrameFilter(sp.subject.packages).rank_of(code) != _OWN:
        return False
    if any(not (_NAME.search(type(each).__name__) or isinstance(each, nn.Identity)) for each in module.children()):
        return False
    options = [value for value in vars(module).values() if isinstance(value, str)]
    arguments = code.co_varnames[2 : code.co_argcount + code.co_kwonlyargcount]
    said = [*(each.__name__ for each in kind.__mro__), attribute, *options, *arguments]
    return not any(_OF_OTHER_AXES.fullmatch(word.lower()) for text in said for word in _WORDS.findall(text))


def _mixing(
    sp: BuiltModule, module: nn.Module, call: PartCall, second: PartCall | None, length: int
) -> MixingNorm | None:
    generator = torch.Generator().manual_seed(sp.subject.seed)
    x = torch.randn(call.x.shape, generator=generator, dtype=torch.float64).to(call.x)

    def alone(x: Tensor) -> Tensor:
        with torch.no_grad():
            answer: Tensor = module(x.clone(), *call.args, **call.kwargs)
        return answer

    plain = alone(x)
    if not bool(torch.isfinite(plain).all()) or not torch.equal(plain, alone(x)) or _declares_axes(module, x):
        return None
    features = _features(module, plain, lambda: alone(x))
    axes = _token_axes(x, None if second is None else second.x, length)
    judged = [axis for axis in axes if axis < min(features or {x.ndim - 1}) and x.ndim - 1 not in axes]
    if axes and features == {x.ndim - 1} and _means_over_beside(x, plain, alone) and not _is_of_heads(sp, x.shape[-2]):
        judged += [x.ndim - 2] if x.ndim - 2 not in judged else []
    size = float(plain.square().mean().sqrt())
    for axis in judged:
        other = x.clone()
        other.select(axis, -1).mul_(_TIMES)  # which one that normalises each token, and then mixes, does not see
        kept = x.shape[axis] - 1
        change = float((alone(other) - plain).narrow(axis, 0, kept).abs().max()) if kept else 0.0
        if change > _LEAST * size:
            return MixingNorm("", module, alone, x, other, axis, change, size)
    return None


def _token_axes(x: Tensor, second: Tensor | None, length: int) -> list[int]:
    """The axes that grow with the sequence; of one length alone, the only axis of that size."""
    if second is not None and second.ndim == x.ndim:
        return [axis for axis in range(x.ndim) if x.shape[axis] != second.shape[axis]]
    alike = [axis for axis in range(x.ndim) if x.shape[axis] == length]
    return alike if len(alike) == 1 else []


def _features(module: nn.Module, plain: Tensor, again: Callable[[], Tensor]) -> set[int]:
    """The axes along which one number among its weights changes one index alone; none where it has no such weights."""
    for parameter in module.parameters():
        if parameter.numel() == 1:
            continue
        with torch.no_grad():
            first = parameter.flatten()[0].clone()
            parameter.view(-1)[0] += 1
            changed = (again() != plain) | ~torch.isfinite(plain)
            parameter.view(-1)[0] = first
        if bool(changed.any()):
            every = range(plain.ndim)
            return {k for k in every if plain.shape[k] > 1 and int(changed.movedim(k, 0).flatten(1).any(1).sum()) == 1}
    return set()


def _declares_axes(module: nn.Module, x: Tensor) -> bool:
    """Whether it holds which axes it normalises, and these are not the last alone."""
    shape = getattr(module, "normalized_shape", ())
    if isinstance(shape, (tuple, list)) and len(shape) > 1:
        return True
    held = [value for name, value in vars(module).items() if _AXES.search(name)]
    several = [value for value in held if isinstance(value, (tuple, list)) and len(value) > 1]
    last = {-1, x.ndim - 1, x.shape[-1]}
    others = [each for each in held if type(each) is int and -x.ndim <= each < x.ndim and each not in last]
    return bool(several or others)


def _means_over_beside(x: Tensor, plain: Tensor, alone: Callable[[Tensor], Tensor]) -> bool:
    """Whether it takes off a mean over the features and the axis before them together, which is no batch and no vector.

    Its weights are of the features alone: of what is meant to be one, as the heads of a token, each has its own.
    """
    if x.ndim < _WITH_BESIDE or x.shape[-2] < _FEWEST_BESIDE:
        return False
    shifted = x.clone()
    shifted[..., -1, :] += 1
    moved = [float((alone(each) - plain).abs().max()) / float(plain.abs().max()) for each in (x + 1, shifted)]
    return moved[0] < _LEAST < moved[1]


def _is_of_heads(sp: BuiltModule, size: int) -> bool:
    """Whether a part of the subject says that it has so many heads."""
    held = [item for part in sp.module.modules() for item in vars(part).items()]
    return any(_HEADS.search(name) and type(value) is int and value == size for name, value in held)
