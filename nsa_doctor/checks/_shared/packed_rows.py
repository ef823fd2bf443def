"""Sequences that are packed into one row, or into several, each compared with itself alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.own_nsa import is_ours
from nsa_doctor.probes.attention.agreement import Worst, worst_token
from nsa_doctor.probes.hooks.field_writers import MOVING
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, require_finite
from nsa_doctor.probes.numerics.divergence import divergence_of, first_divergence, recording_of
from nsa_doctor.probes.numerics.mask_origin import first_reader
from nsa_doctor.probes.numerics.precision import noise_floor
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_LENGTHS = (7, 1, 33, 64, 18)
_LONGEST = 200
_ROWS = ((37,), (7, 1, 29), (20, 17))  # lengths of what stands in each; numbers begin at zero in each
_Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Misread:
    """A sequence of that many tokens that differs from itself alone; `which` says of which, `place` why."""

    which: str
    number: int
    length: int
    worst: Worst
    place: Place


def lengths_to_pack(subject: Subject) -> list[int]:
    """Sequences that end inside blocks of every kind, one of a single token, one that outgrows all windows."""
    try:
        rules = rules_of(subject)
    except NotApplicableError:
        ends = accumulate(_LENGTHS)
        fitting = [length for length, end in zip(_LENGTHS, ends, strict=True) if end <= subject.max_length]
        return fitting if len(fitting) > 1 else [1] * min(2, subject.max_length)
    longest = [length for length in rules.telling_lengths(subject.max_length) if length <= _LONGEST]
    return [rules.l + rules.d - 1, 1, *longest[-1:], rules.l_sel + 3, rules.l - 1 or 1]


def misread_in_one_row(sp: BuiltModule, parts: Sequence[Tensor], eps: float) -> Iterator[Misread]:
    """The first of these sequences that is misread where all of them stand in one row, if one is."""
    lengths, x = [part.shape[1] for part in parts], torch.cat(tuple(parts), dim=1)
    cu_seqlens = torch.tensor(_offsets(sp.subject, lengths), dtype=torch.int32, device=x.device)
    with torch.no_grad():
        together = ask("forward of packed sequences", lambda: _read(sp, x, cu_seqlens), sp.module)
        found = _first_misread(sp, parts, together.split(lengths, dim=1), eps)
        if found is not None:
            index, worst = found
            place = _place(sp, x, cu_seqlens, sum(lengths[:index]))
            yield Misread(f"sequence {index} of {len(lengths)}, packed,", index, lengths[index], worst, place)


def misread_in_rows(sp: BuiltModule, eps: float) -> Iterator[Misread]:
    """The first sequence that is misread in one of several rows, if one is; nothing where these are refused."""
    if sp.subject.documents is None or sp.subject.max_length < sum(_ROWS[0]):
        return
    x = sp.input(sum(_ROWS[0]), len(_ROWS))
    numbers = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in _ROWS]
    ids = torch.stack(numbers).to(x.device)
    with torch.no_grad(), unobserved():
        together = attempt(lambda: _read_rows(sp, x, ids))
        if isinstance(together, Caught) or together.shape[:2] != x.shape[:2]:
            return
        for row, lengths in enumerate(_ROWS):
            parts, read = (each[row : row + 1].split(lengths, dim=1) for each in (x, together))
            found = _first_misread(sp, parts, read, eps)
            if found is not None:
                index, worst = found
                which = f"sequence {index} of row {row}, one of {len(_ROWS)} rows of packed sequences,"
                yield Misread(which, index, lengths[index], worst, _place_in_rows(sp, x, ids, row))
                return


def _first_misread(
    sp: BuiltModule, parts: Sequence[Tensor], read: Sequence[Tensor], eps: float
) -> tuple[int, Worst] | None:
    for index, (part, got) in enumerate(zip(parts, read, strict=True)):
        worst = worst_token(got, require_finite(sp(part), part.shape[1]), noise_floor(sp, part, eps))
        if worst is not None:
            return index, worst
    return None


def _offsets(subject: Subject, lengths: Sequence[int]) -> list[int]:
    """Where the sequences start; with `nsa`, which takes them, empty ones stand before, between and after the rest."""
    starts = [0, *accumulate(lengths)]
    return sorted([*starts, starts[0], starts[2], starts[-1]]) if is_ours(subject.packages) else starts


def _read(sp: BuiltModule, x: Tensor, cu_seqlens: Tensor) -> Tensor:
    packed = sp.subject.packed
    assert packed is not None
    return packed(sp.module, x.clone(), cu_seqlens.clone())


def _read_rows(sp: BuiltModule, x: Tensor, ids: Tensor) -> Tensor:
    documents = sp.subject.documents
    assert documents is not None
    return documents(sp.module, x.clone(), ids.clone())


def _place(sp: BuiltModule, x: Tensor, cu_seqlens: Tensor, start: int) -> Place:
    """Where a sequence comes to depend on those before its start; where the output is made if it is not by them."""
    other = torch.cat((sp.input(max(1, start), seed=sp.subject.seed + len(cu_seqlens))[:, :start], x[:, start:]), dim=1)
    first, second = (lambda x=each: _read(sp, x, cu_seqlens) for each in (x, other))
    found = attempt(lambda: first_divergence(sp, first, second, {x.shape[1]: start - x.shape[1]}, cu_seqlens))
    if not isinstance(found, Caught) and found.operation:
        return found.mask or found.place
    return _of_output(sp, first)


def _place_in_rows(sp: BuiltModule, x: Tensor, ids: Tensor, row: int) -> Place:
    """Where a row comes to depend on those before it, or the first on those behind; else where the output is made.

    Where it is by what is fetched from elsewhere, or laid there, the line that reads which sequence a token is of.
    """
    other = sp.input(x.shape[1], len(x), seed=sp.subject.seed + len(x))
    own = slice(row, None if row else 1)
    other[own] = x[own]
    kept = {len(x): row - len(x) if row else 1}
    first, second = (lambda x=each: _read_rows(sp, x, ids) for each in (x, other))
    one, two = (attempt(lambda run=each: recording_of(sp, run)) for each in (first, second))
    if not isinstance(one, Caught) and not isinstance(two, Caught):
        found = attempt(lambda: divergence_of(sp, one, two, kept, ids))
        if not isinstance(found, Caught) and found.operation:
            is_moved = not found.computes or found.operation in MOVING
            return found.mask or (first_reader(one.operations, ids) if is_moved else None) or found.place
    return _of_output(sp, first)


def _of_output(sp: BuiltModule, run: _Run) -> Place:
    made = origin(sp.subject, sp.module, run)
    return replace(made, module="", module_class=type(sp.module).__name__)
