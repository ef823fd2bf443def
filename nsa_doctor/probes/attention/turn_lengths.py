"""What becomes of lengths where tensors are turned by tables of sines: a rotation keeps them, up to a factor."""

from collections.abc import Iterator
from dataclasses import dataclass
from linecache import getline

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.table_turns import TableTurn, table_turns
from nsa_doctor.subject.contract import Subject

_MOST_CHANNELS = 256
_MOST_OF_A_LINE = 4  # layers and tensors that one line turns
_EXACT = 1e-3  # of the largest value: what rounding leaves of what is linear
_MIXED = 0.1  # of the two lengths: a table in half precision makes a hundredth
_SWINGS, _LOST = 0.5, 0.1  # of the largest squared length of a channel


@dataclass(frozen=True)
class LengthChange:
    """What is seen of lengths that a turn changes, in words, how much is kept at least and at most, and where."""

    text: str
    least: float
    most: float
    place: Place


def length_changes(subject: Subject, length: int) -> Iterator[LengthChange]:
    """Turns by position of a pass over so many tokens that change lengths as no factor of a position does."""
    seen: dict[str, int] = {}
    for turn in table_turns(subject, length):
        line = turn.place.line_text
        seen[line] = seen.get(line, 0) + 1
        if seen[line] <= _MOST_OF_A_LINE:
            found = attempt(lambda turn=turn: _change(turn))
            if found is not None and not isinstance(found, Caught):
                yield found


def _change(turn: TableTurn) -> LengthChange | None:
    matrices = _matrices(turn)
    if matrices is None:
        return None
    kept = matrices.abs().amax((0, 1)) > 0
    made = matrices.abs().amax((0, 2)) > 0
    matrices, channels = matrices[:, made][:, :, kept], kept.nonzero()[:, 0].tolist()
    if matrices.shape[1] != matrices.shape[2]:
        return None
    products = matrices.mT @ matrices
    found = _mixed(products, channels)
    if found is None and bool((matrices - torch.diag_embed(matrices.diagonal(dim1=1, dim2=2))).any()):
        found = _swinging(products.diagonal(dim1=1, dim2=2), channels)  # what turns no channel is a gate, or a season
    if found is None:
        return None
    text, least, most = found
    name = {"sin": "sines", "cos": "cosines"}.get("".join(turn.waves), "")
    return LengthChange(f"{text}; all tables hold {name}" if name else text, least, most, _place(turn))


def _matrices(turn: TableTurn) -> Tensor | None:
    """What each position makes of the channels of its own token, [P, E, D]; None where it makes something else."""
    shape, dtype = turn.source.shape, turn.source.dtype
    width = shape[-1] * (2 if dtype.is_complex else 1)
    if len(shape) < 2 or not 2 <= width <= _MOST_CHANNELS or turn.result.shape[: len(shape) - 1] != shape[:-1]:
        return None
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn((*shape[:-1], width), generator=generator, dtype=torch.float64).to(turn.source.device)

    def turned(values: Tensor) -> Tensor:
        given = torch.view_as_complex(values.unflatten(-1, (-1, 2))) if dtype.is_complex else values
        made = turn.again(given.to(dtype))
        made = torch.view_as_real(made) if made.is_complex() else made
        return made.double().reshape(*shape[:-1], -1)

    alike = turned(drawn[(0,) * (len(shape) - 1)].expand_as(drawn).contiguous())
    largest = alike.abs().max()
    apart = [(alike - alike.narrow(axis, 0, 1)).abs().max() for axis in range(len(shape) - 1)]
    turning = [axis for axis, each in enumerate(apart) if each > _EXACT * largest]
    if not turning or bool(turned(torch.zeros_like(drawn)).any()):
        return None
    axis = max(turning, key=lambda each: shape[each])
    taken = tuple(slice(None) if each == axis else 0 for each in range(len(shape) - 1))
    columns = []
    for channel in range(width):
        unit = torch.zeros_like(drawn)
        unit[..., channel] = 1
        columns.append(turned(unit)[taken])
    matrices = torch.stack(columns, -1)
    expected = (matrices @ drawn[taken][..., None])[..., 0]
    if not bool((turned(drawn)[taken] - expected).abs().max() <= _EXACT * expected.abs().max()):
        return None
    return matrices


def _mixed(products: Tensor, channels: list[int]) -> tuple[str, float, float] | None:
    """Two channels that are at right angles before and not behind, so that some sums of them grow and others shrink."""
    sizes = products.diagonal(dim1=1, dim2=2).amax(0).sqrt()
    cosines = products.abs() / (sizes[:, None] * sizes).clamp_min(1e-300)
    cosines.diagonal(dim1=1, dim2=2).zero_()
    if not bool(cosines.max() > _MIXED):
        return None
    position, one, other = (int(each) for each in torch.unravel_index(cosines.argmax(), cosines.shape))
    pair = products[position][[one, other]][:, [one, other]]
    least, most = torch.linalg.eigvalsh(pair).clamp_min(0).sqrt().tolist()
    text = (
        f"vectors of channels {channels[one]} and {channels[other]} come out {least:.3g} to {most:.3g} times as long "
        f"at position {position}"
    )
    return text, least, most


def _swinging(squares: Tensor, channels: list[int]) -> tuple[str, float, float] | None:
    """A channel [P, D] that is nearly lost at some positions and comes back at others, as no scale does."""
    largest = squares.amax(0)
    rises = (squares - squares.cummin(0).values).amax(0)
    falls = (squares.cummax(0).values - squares).amax(0)
    wrong = (torch.minimum(rises, falls) > _SWINGS * largest) & (squares.amin(0) < _LOST * largest)
    if not bool(wrong.any()):
        return None
    channel = int(wrong.nonzero()[0])
    own = squares[:, channel].sqrt()
    least, most = float(own.min()), float(own.max())
    text = (
        f"channel {channels[channel]} comes out {least:.3g} times as long at position {int(own.argmin())} and "
        f"{most:.3g} times at position {int(own.argmax())}"
    )
    return text, least, most


def _place(turn: TableTurn) -> Place:
    """The line that takes the only kind of waves there is, where it is named for the other kind; else the sum's."""
    missing = {"sin": "cos", "cos": "sin"}.get("".join(turn.waves))
    if missing is None or not turn.takers:
        return turn.place
    return next((each for each in turn.takers if missing in getline(each.file, each.line)), turn.takers[-1])
