"""A softmax that a module holds and does not call, where it sums values by plain products in its place."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.recording import Call, Operation, Recording
from nsa_doctor.probes.hooks.unread_variables import methods_used
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.divergence import recording_of

_KINDS = (nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d)
_PRODUCTS = frozenset({"bmm", "baddbmm"})  # of tensors that have a batch each: weights have none
_WEIGHING = frozenset(
    {"softmax", "safe_softmax", "sigmoid", "exp", "log_softmax", "relu", "elu", "gelu", "silu", "tanh", "softplus"}
)
_DIVISIONS = frozenset({"div", "div_"})


@dataclass(frozen=True)
class IdleSoftmax:
    """The module's name, that of the softmax in it, and the line of the product that sums."""

    holder: str
    name: str
    place: Place


def idle_softmaxes(sp: BuiltModule, x: Tensor) -> Iterator[IdleSoftmax]:
    """Of each module that a pass calls, and in which nothing else normalises what it weighs values by."""
    recording = recording_of(sp, lambda: sp(x))
    paths = {part: path for path, part in sp.module.named_modules()}
    called = {id(call.module) for call in recording.calls}
    seen = set[int]()
    for call in recording.calls:
        if call.module is None or id(call.module) in seen or call.module not in paths:
            continue
        seen.add(id(call.module))
        softmaxes = [name for name, part in call.module.named_children() if isinstance(part, _KINDS)]
        idle = [name for name in softmaxes if id(getattr(call.module, name)) not in called]
        idle = [name for name in idle if not _is_read(call.module, name)]
        place = _weighed(recording, call, x.shape[1]) if idle else None
        if place is not None:
            where = replace(place, module=paths[call.module], module_class=type(call.module).__name__)
            yield IdleSoftmax(paths[call.module], idle[0], where)


def _is_read(holder: nn.Module, name: str) -> bool:
    """Whether one of its methods reads the attribute: for another call, it may be."""
    named = (node for _, method in methods_used(holder) if method.name != "__init__" for node in ast.walk(method))
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in named)


def _weighed(recording: Recording, call: Call, length: int) -> Place | None:
    """The line of a product of values and of another product, if the call normalises nothing; not of a part's own.

    Nor if a part makes weights of scores. A product that sums over tokens first scores none of them (linear attention).
    """
    parts = [each for each in recording.calls if each.module is not call.module and call.start <= each.start]
    below = {number for each in parts if each.end <= call.end for number in range(each.start, each.end)}
    inside = [number for number in range(call.start, call.end) if number not in below]
    if any(_weighs(recording.operations[number]) for number in inside):
        return None
    if any(_is_attention(recording.operations[number]) for number in below):
        return None
    behind = set[int]()  # a product
    for number in inside:
        operation = recording.operations[number]
        is_behind = any(maker in behind for maker in operation.makers)
        if operation.name in _PRODUCTS and is_behind:
            return operation.place
        if (operation.name in _PRODUCTS and not _sums_tokens(operation, length)) or is_behind:
            behind.add(number)
    return None


def _weighs(operation: Operation) -> bool:
    """Whether it makes weights of scores, or divides by sums; by one number scores are scaled."""
    is_by_many = len(operation.read) > 1 and operation.read[1][1].numel() > 1
    is_weighing = operation.name in _WEIGHING or _is_attention(operation)
    return is_weighing or (operation.name in _DIVISIONS and is_by_many)


def _is_attention(operation: Operation) -> bool:
    """Whether it is a softmax, or attention that torch or another library fuses."""
    return "softmax" in operation.name or "attention" in operation.name or "attn" in operation.name


def _sums_tokens(operation: Operation, length: int) -> bool:
    """Whether a product sums over the tokens, and has none left."""
    left = operation.read[-2][1] if len(operation.read) > 1 else None
    if left is None or not operation.results:
        return False
    return left.shape[-1] == length and length not in operation.results[0].shape[-2:]
