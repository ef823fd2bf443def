"""What two functions do one after the other, of which one is to undo the other: by what operations, and what comes."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.own_calls import OwnCall
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_LAYOUT = frozenset(
    {
        *("view", "unsafe_view", "reshape", "reshape_alias", "transpose", "transpose_", "t", "permute"),
        *("slice", "select", "expand", "unsqueeze", "squeeze", "unsqueeze_", "squeeze_", "squeeze_copy"),
        *("unbind", "split", "split_with_sizes", "unsafe_split", "alias", "clone", "copy_", "detach"),
        *("to_copy", "contiguous", "cat", "stack", "flatten", "unflatten", "as_strided", "roll", "flip"),
        *("constant_pad_nd", "pad", "index", "index_select", "gather", "index_put_", "index_copy", "scatter"),
        *("scatter_", "slice_scatter", "select_scatter", "movedim", "narrow", "chunk", "repeat", "unfold"),
        *("diagonal", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "new_zeros", "zeros"),
        *("zeros_like", "new_empty", "empty", "empty_like", "empty_strided", "new_empty_strided", "fill_"),
        *("zero_", "sort", "lift_fresh", "lift_fresh_copy"),
    }
)
_ARITHMETIC = frozenset(
    {
        *("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "neg", "neg_", "reciprocal"),
        *("sqrt", "rsqrt", "pow", "square", "exp", "log", "log1p", "expm1", "sin", "cos", "addcmul", "addcdiv"),
        *("abs", "sign", "full", "full_like", "ones", "ones_like", "new_ones", "new_full", "arange"),
        *("scalar_tensor", "sum", "mean", "var", "std", "var_mean", "amax", "amin", "max", "min"),
        *("linalg_vector_norm", "norm"),
    }
)
_DRAWS_OR_MIXES = frozenset(
    {
        *("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "convolution", "convolution_overrideable"),
        *("native_dropout", "dropout", "bernoulli", "bernoulli_", "rand", "randn", "rand_like", "randn_like"),
        *("randint", "randperm", "normal", "normal_", "uniform_", "random_", "softmax", "log_softmax"),
        *("embedding", "topk", "multinomial", "cudnn_rnn", "lstm", "gru", "scaled_dot_product_attention"),
        *("native_layer_norm", "native_group_norm", "native_batch_norm", "im2col", "col2im", "fft_r2c"),
        *("fft_c2c", "fft_c2r"),
    }
)
_LEAST_NUMBER = 1e-2  # what is less is there so that nothing is divided by zero
_FEWEST_PLACES, _ALIKE, _MOST = 8, 0.999, 0.8
_LOST = 0.03  # a share of the values

Sources = dict[str, tuple[str, Any]]


@dataclass
class Watched:
    """What a call answered, by which operations, and what names its own code has."""

    y: Tensor | None = None
    beside: list[Tensor] = field(default_factory=list)
    answer: Any = None
    is_layout: bool = True
    is_arithmetic: bool = True
    names: set[str] = field(default_factory=set)


def watched(call: OwnCall, frames: FrameFilter) -> Watched:
    """Make the call; `y` is the one tensor that it answers with, first in a sequence, if no other is like it."""
    found = Watched()
    with torch.no_grad(), _Operations(found, call.x.numel()), _names(frames, found.names):
        found.answer = call.again()
    tensors = list(tensors_in(found.answer))
    if tensors and isinstance(found.answer, (Tensor, tuple, list)):
        first, *rest = tensors
        is_alone = not any(each.shape == first.shape and each.is_floating_point() for each in rest)
        if is_alone and first.is_floating_point():
            found.y, found.beside = first, rest
    return found


class _Operations(DispatchWatcher):
    def __init__(self, found: Watched, size: int) -> None:
        super().__init__()
        self._found, self._size = found, size

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = func(*args, **kwargs)
        name = operation_name(func)
        is_of_places = not any(each.is_floating_point() for each in tensors_in(answer)) and name not in _DRAWS_OR_MIXES
        if (name in _LAYOUT or is_of_places) and not _is_by_mask(args):
            return answer
        self._found.is_layout = False
        is_large = any(each.numel() >= self._size for each in tensors_in(answer))
        if name in _DRAWS_OR_MIXES or _is_by_mask(args) or (is_large and name not in _ARITHMETIC):
            self._found.is_arithmetic = False
        return answer


def _is_by_mask(args: tuple[Any, ...]) -> bool:
    return any(each.dtype == torch.bool for each in tensors_in(*args[1:]))


@contextmanager
def _names(frames: FrameFilter, names: set[str]) -> Iterator[None]:
    """Add the names that the subject's code which runs meanwhile has."""
    seen: set[CodeType] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in seen:
            seen.add(code)
            if frames.rank_of(code) >= 2:
                names.update(code.co_names, (each for each in code.co_consts if isinstance(each, str)))

    with calls_seen_by(look):
        yield


def reads_more(second: OwnCall, names: set[str], others: set[str]) -> bool:
    """Whether the second reads something by its names that the first has no word of: statistics of another thing."""
    held = dict(getattr(inspect.unwrap(second.function), "__globals__", {}))
    for inner in _attributes(second.holder).values():
        held |= _attributes(inner)
    held |= _attributes(second.holder)
    return any(_counts(held[name]) for name in (others - names) & held.keys())


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds by name."""
    if isinstance(value, Mapping | nn.ParameterDict):
        return {name: each for name, each in value.items() if isinstance(name, str)}
    if isinstance(value, nn.Module):
        named = (value.named_parameters(recurse=False), value.named_buffers(recurse=False), value.named_children())
        return {**vars(value), **{name: each for some in named for name, each in some}}
    return {} if isinstance(value, (Tensor, type)) else dict(getattr(value, "__dict__", {}))


def _counts(value: Any) -> bool:
    """Whether it is something to compute with, and no epsilon."""
    if isinstance(value, (float, int)):
        return not isinstance(value, bool) and abs(value) > _LEAST_NUMBER and abs(value) != 1
    return isinstance(value, (Tensor, nn.Module, dict, list, tuple))


def handed_from(first: OwnCall, y: Watched, second: OwnCall) -> Sources | None:
    """Where the second has its further tensors and numbers from: an argument of the first, or a part of its answer.

    None where it has one that the first has nothing to do with, or that hides values.
    """
    if not _is_for_the_same(first, second):
        return None
    found: Sources = {}
    for name, value in second.others.items():
        if isinstance(value, (tuple, list, dict)) and (leaves := list(tensors_in(value))):
            held = _held_in_one(leaves, first, y)
            if held is None:
                return None
            found[name] = held
            continue
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            continue
        if value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all()):
            return None
        given = next((each for each, other in first.others.items() if _is_same(value, other)), None)
        answered = next((at for at, other in enumerate(y.beside) if _is_same(value, other)), None)
        if given is None and answered is None:
            return None
        found[name] = ("argument", given) if given is not None else ("answer", answered)
    return found


def _held_in_one(leaves: list[Tensor], first: OwnCall, y: Watched) -> tuple[str, Any] | None:
    """Where several tensors in one are from: an argument of the first that holds them, or parts of its answer."""
    for name, other in first.others.items():
        own = list(tensors_in(other)) if isinstance(other, (tuple, list, dict)) else []
        if len(own) == len(leaves) and all(map(_is_same, leaves, own)):
            return "argument", name
    places = [next((at for at, other in enumerate(y.beside) if _is_same(leaf, other)), None) for leaf in leaves]
    return None if None in places else ("answers", places)


def rebuilt(value: Any, leaves: Iterator[Tensor]) -> Any:
    """The same tuples, lists and mappings around other tensors, in the order in which they stand there."""
    if isinstance(value, Tensor):
        return next(leaves).reshape(value.shape)
    if isinstance(value, dict):
        return {name: rebuilt(each, leaves) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        made = [rebuilt(each, leaves) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def _is_for_the_same(first: OwnCall, second: OwnCall) -> bool:
    """Whether arguments of one name agree, counts in some order, and the second has no factor of its own."""
    both = [(first.others[name], value) for name, value in second.others.items() if name in first.others]
    differing = sum(type(one) in (bool, str) and one != other for one, other in both)
    if differing > second.is_mode:
        return False
    counts = [each for each in both if type(each[0]) is int]
    if sorted(one for one, _ in counts) != sorted(other for _, other in counts if type(other) is int):
        return False
    numbers = [each for each in first.others.values() if isinstance(each, float)]
    others = [each for each in second.others.values() if isinstance(each, float)]
    return all(each in numbers or abs(each) <= _LEAST_NUMBER for each in others)


def has_other_counts(first: OwnCall, second: OwnCall) -> bool:
    """Whether the second is given a whole number that the first is not: a factor, where it computes."""
    known = [each for each in first.others.values() if type(each) is int]
    return any(type(each) is int and each not in known for each in second.others.values())


def _is_same(value: Tensor, other: Any) -> bool:
    if not isinstance(other, Tensor) or value.numel() != other.numel() or value.dtype != other.dtype:
        return False
    return torch.equal(value.reshape(-1), other.reshape(-1))


def is_laid_out_wrongly(x: Tensor, y: Tensor, back: Tensor) -> float:
    """The share of values that come back elsewhere; 0 where all do not, where axes alone change, or too few differ."""
    distinct = x.unique().numel()
    if 2 * distinct < x.numel() or not bool(torch.isin(x, y).all()):
        return 0.0
    share = float((x != back).double().mean())
    if share < _LOST or any(torch.equal(x.permute(axes), back) for axes in _axes_of(x)):
        return 0.0
    return share


def _axes_of(x: Tensor) -> list[tuple[int, ...]]:
    """Orders of its axes that leave its shape."""
    if x.ndim > 6:
        return []
    return [axes for axes in permutations(range(x.ndim)) if x.permute(axes).shape == x.shape]


def mixes_axes(call: OwnCall) -> bool:
    """Whether a step along an axis of its answer moves by other axes of what it was given than it should.

    By different ones, depending on where it is made; or by another axis than that of the same size, where one alone is.
    """
    x = call.x
    places = places_of(x)
    answer = next(iter(tensors_in(call.given({call.first: places}).again())))
    if answer.numel() != x.numel() or not torch.equal(answer.flatten().sort().values, places.flatten()):
        return False
    coordinates = torch.unravel_index(answer.long() - 1, x.shape)
    return not all(_is_sum_of_axes(each) for each in coordinates) or _leaves_its_axis(x, coordinates)


def _leaves_its_axis(x: Tensor, coordinates: Sequence[Tensor]) -> bool:
    sizes = list(coordinates[0].shape)
    for axis, size in enumerate(sizes):
        if sizes.count(size) == 1 and list(x.shape).count(size) == 1 and size > 1:
            others = [each for at, each in enumerate(coordinates) if x.shape[at] != size]
            if any(not torch.equal(each, each.narrow(axis, 0, 1).expand_as(each)) for each in others):
                return True
    return False


def moves_along_axes(x: Tensor, back: Tensor) -> bool:
    """Whether places that come back are those of x, each axis turned round or rolled."""
    if not torch.equal(back.flatten().sort().values, x.flatten()):
        return False
    coordinates = torch.unravel_index(back.long() - 1, x.shape)
    for axis, values in enumerate(coordinates):
        line = values
        for other in range(values.ndim):
            line = line if other == axis else line.narrow(other, 0, 1)
        steps = line.flatten().diff() % x.shape[axis]
        if not torch.equal(values, line.expand_as(values)) or not bool((steps == steps[:1]).all()):
            return False
    return True


def places_later(x: Tensor, back: Tensor) -> int:
    """By how many places of an axis x has moved where it comes back; 0 where it has not, or not as a whole.

    Each place may come back larger or smaller, as where windows are added up.
    """
    for axis in range(x.ndim):
        size = x.shape[axis]
        if size < _FEWEST_PLACES or size == x.numel():
            continue
        one, other = (each.detach().double().movedim(axis, 0).flatten(1) for each in (back, x))
        alike = torch.cosine_similarity(one[:, None], other[None], dim=-1)
        shares = {k: float((alike.diagonal(-k) > _ALIKE).double().mean()) for k in range(-size // 2, size // 2 + 1)}
        if shares[0] >= _MOST:
            return 0
        moved = max(shares, key=lambda k: shares[k])
        if shares[moved] >= _MOST and shares[0] < 1 - _MOST:
            return moved
    return 0


def places_of(x: Tensor) -> Tensor:
    """A number for each place of x, from 1 on."""
    return torch.arange(1, x.numel() + 1, dtype=torch.float64, device=x.device).reshape(x.shape).to(x.dtype)


def _is_sum_of_axes(values: Tensor) -> bool:
    """Whether the values [...] are a sum of functions of one index each."""
    corner = values[(0,) * values.ndim]
    expected = corner.clone()
    for axis in range(values.ndim):
        index: list[Any] = [0] * values.ndim
        index[axis] = slice(None)
        shape = [1] * values.ndim
        shape[axis] = -1
        expected = expected + (values[tuple(index)] - corner).reshape(shape)
    return torch.equal(expected.expand_as(values), values)
