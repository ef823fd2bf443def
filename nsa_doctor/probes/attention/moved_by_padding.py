"""Buffers that training moves by what stands in the padding of a batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.padded_rows import PaddedRow
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.hooks.write_lines import WriteLines
from nsa_doctor.probes.internal import NORMS_BY_BATCH, part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_ROUNDINGS = 1e4


@dataclass(frozen=True)
class Moved:
    """Buffers, by how much at most more or less they move for another padding, and the first line that moves one.

    by_amount: for more padding, and not for another content.
    """

    names: list[str]
    most: float
    place: Place
    by_amount: bool
    is_of_a_norm: bool


def moved_by_padding(subject: Subject, length: int, padding: int) -> list[Moved]:
    """Those of one call in training mode whose values differ with the padding; raises what the call raises.

    What has the size of a row's tokens holds what was last seen, and no average; several values that other
    tokens leave as they are were computed of positions.
    """
    sp = built(subject, mode="train")
    before, sizes = _buffers(sp.module), {length, length + padding}
    lines: dict[str, Place] = {}
    calls: list[Callable[[PaddedRow], object]] = [
        PaddedRow.output,
        lambda row: row.output(padding=1),
        PaddedRow.by_itself,
        lambda row: row.stretched(2),
        lambda row: _of_other_tokens(row).by_itself(),
    ]
    after = [_after(subject, PaddedRow(sp, length, padding, is_left=False), call, lines) for call in calls]
    found: list[Moved] = []
    for name, value in before.items():
        values = [value, *(each[name] for each in after if name in each)]
        alike = len(values) == 1 + len(calls) and len({each.shape for each in values}) == 1
        if not alike or sizes & set(value.shape) or not value.is_floating_point() or not value.numel():
            continue
        _, first, second, short, stretched, other = values
        if value.numel() > 1 and torch.equal(short, other):
            continue  # whatever the tokens are: a table as long as what came so far
        apart = [float((one - other).abs().max()) for one, other in ((first, second), (short, stretched))]
        least = _ROUNDINGS * torch.finfo(value.dtype).eps * max(float(each.abs().max()) for each in values)
        if max(apart) > least and not torch.equal(value, first):
            is_of_a_norm = isinstance(part_at(sp.module, name.rpartition(".")[0]), NORMS_BY_BATCH)
            found.append(Moved([name], max(apart), _place(sp, name, lines), apart[0] <= least, is_of_a_norm))
    kinds = ([each for each in found if each.is_of_a_norm is kind] for kind in (False, True))
    return [_as_one(alike) for alike in kinds if alike]


def _of_other_tokens(row: PaddedRow) -> PaddedRow:
    sp = row.sp
    return replace(row, sp=replace(sp, subject=replace(sp.subject, seed=sp.subject.seed + 1)))


def _as_one(found: Sequence[Moved]) -> Moved:
    """All of them, at the first of the lines in one file: what hands padding on to one does to the others."""
    file = found[0].place.file
    place = min((each.place for each in found if each.place.file == file), key=lambda each: each.line or 0)
    names = [name for each in found for name in each.names]
    by_amount = all(each.by_amount for each in found)
    return Moved(names, max(each.most for each in found), place, by_amount, found[0].is_of_a_norm)


def _after(
    subject: Subject, row: PaddedRow, call: Callable[[PaddedRow], object], lines: dict[str, Place]
) -> Mapping[str, Tensor]:
    """The buffers of a module of its own after one call with the row; `lines` takes where they are written."""
    sp = built(subject, mode="train")
    places = Places(FrameFilter(subject.packages))
    places.know(sp.module)
    named = dict(sp.module.named_buffers())
    watch = WriteLines(named.values(), places)
    with torch.no_grad(), places.watching(), watch:
        call(replace(row, sp=sp))
    lines.update({name: watch.call_of(buffer) for name, buffer in named.items()})
    return _buffers(sp.module)


def _buffers(module: nn.Module) -> Mapping[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


def _place(sp: BuiltModule, name: str, lines: Mapping[str, Place]) -> Place:
    """Where it is written into, or where the forward of the module that holds it is."""
    if (place := lines.get(name, Place())).file:
        return place
    path = name.rpartition(".")[0]
    holder = part_at(sp.module, path)
    return replace(definition_place(holder), module=path, module_class=type(holder).__name__)
