"""An id that a subject compares its input with, and hides on the wrong side: as a query, or everything but it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.padding_ids import shown_by, taken_apart, without_id
from nsa_doctor.probes.hooks.recording import Operation
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.divergence import recording_of

_PADDING, _DRAWS, _LENGTH = 3, 2, 24
_ROUNDINGS = 1e4


@dataclass(frozen=True)
class WrongSide:
    """What is wrong, and the line where weights that show it are made, if they are."""

    words: str
    place: Place | None


def wrong_side(sp: BuiltModule, number: int) -> WrongSide | None:
    """What is hidden in place of padding with that id, which stands in front of a row's tokens; None where it is not.

    Either tokens see all of it, and it sees nothing but itself; or no token sees anything else.
    """
    length = min(_LENGTH, sp.subject.max_length)
    draws = [_row(sp, number, length, draw) for draw in range(_DRAWS)]
    found = [_of_weights(sp, *draw) for draw in draws]
    if None not in found and len({each.words for each in found if each}) == 1:
        return found[0]
    if not all(_mixes_by_kernels(sp, padded) and _reads_padding_alone(sp, padded) for padded, _ in draws):
        return None
    return WrongSide(f"no token reads any other but those of id {number}", None)


def _row(sp: BuiltModule, number: int, length: int, draw: int) -> tuple[Tensor, Tensor]:
    """A row behind tokens of that id, and the same with others in their place."""
    other = without_id(sp.input(length, seed=sp.subject.seed + draw), number, sp.subject.width)
    padded = other.clone()
    padded[:, :_PADDING] = number
    return padded, other


def _weights(sp: BuiltModule, x: Tensor) -> list[tuple[Tensor, Place]]:
    """Which keys each query is shown [..., S, S], by every softmax over the row, and the line of it."""
    with taken_apart():
        recording = recording_of(sp, lambda: sp(x))
    return list(_square(recording.operations, x.shape[1]))


def _square(operations: Sequence[Operation], length: int) -> Iterator[tuple[Tensor, Place]]:
    for operation in operations:
        for shown in shown_by(operation):
            if shown.ndim >= 2 and shown.shape[-2:] == (length, length):
                yield shown.reshape(-1, length, length), operation.place


def _of_weights(sp: BuiltModule, padded: Tensor, other: Tensor) -> WrongSide | None:
    number, (shown, before) = int(padded[0, 0]), (_weights(sp, x) for x in (padded, other))
    if not shown or len(shown) != len(before):
        return None
    apart = ~torch.eye(padded.shape[1], dtype=torch.bool, device=padded.device)
    reach = [bool((each & apart)[:, :, _PADDING:].any()) for each, _ in shown]
    if not any(reach) and all(bool(each[:, _PADDING:, :_PADDING].any()) for each, _ in shown):
        sink = [bool((each & apart).any()) and not bool((each & apart)[:, :, _PADDING:].any()) for each, _ in before]
        if not any(sink):  # of the first tokens, whatever they are
            return WrongSide(f"tokens attend to those of id {number}, and to no other but themselves", shown[0][1])
        return None
    is_seen = all(bool(each[:, _PADDING:, :_PADDING].all()) for each, _ in shown)
    sees_nothing = all(bool((each[:, :_PADDING].sum(-1) <= 1).all()) for each, _ in shown)
    saw = all(bool((each[:, 1:_PADDING].sum(-1) > 1).all()) for each, _ in before)
    if is_seen and sees_nothing and saw:
        return WrongSide(
            f"tokens of id {number} attend to themselves alone, and all others attend to them", shown[0][1]
        )
    return None


def _mixes_by_kernels(sp: BuiltModule, x: Tensor) -> bool:
    """Whether convolutions over several places are all that mixes tokens: counts of ids are read by them as well."""
    recording = recording_of(sp, lambda: sp(x))
    kernels = [
        each.read[1][1].shape[2:] for each in recording.operations if each.name == "convolution" and each.read[1:]
    ]
    is_attention = any(True for _ in _square(recording.operations, x.shape[1]))
    return not is_attention and any(max(kernel, default=1) > 1 for kernel in kernels)


def _reads_padding_alone(sp: BuiltModule, padded: Tensor) -> bool:
    """Whether outputs change with tokens of that id beside them, and with no other token but their own."""
    number, length, width = int(padded[0, 0]), padded.shape[1], sp.subject.width
    rows = padded.repeat(length + 1, 1)
    for token in range(length):
        changed = (padded[0, token] + 1) % width
        rows[token + 1, token] = (changed + 1) % width if int(changed) == number else changed
    with torch.no_grad():
        output = sp(rows).double().flatten(2)
    bound = _ROUNDINGS * torch.finfo(getattr(torch, sp.dtype)).eps * output.abs().max()
    read = ((output[1:] - output[:1]).abs().amax(-1) > bound) & ~torch.eye(length, dtype=torch.bool)
    return bool(read[:_PADDING].any()) and not bool(read[_PADDING:].any())
