"""Finds out how a plain module reads packed sequences: by a forward that takes where each starts or which it is."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.input_discovery import called, parameter_names
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject

_STARTS, _LONGEST = "cu_seqlens", "max_seqlen"
_POSITIONS = ("position_ids", "positions")
# The number of the sequence, per token.
_NUMBERS = ("document_ids", "doc_ids", "document_id", "sequence_ids", "seq_ids", "seq_idx")
_LENGTH, _PARTS, _CLOSE = 9, (5, 4), 1e-3
_Reading = Callable[[nn.Module, Tensor, Tensor], Tensor]


def with_packing(subject: Subject, module: nn.Module) -> Subject:
    """The subject, whose forward reads packed sequences where one alone in a row gives what the row gives unpacked.

    Positions that begin again with each are given beside, where it takes them. They alone may be what separates
    sequences: where two are seen to be kept apart by them. What says of each token which sequence it is of, or where in
    it, may be given for several rows.
    """
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught) or subject.offers("packed") or subject.max_length < _LENGTH:
        return subject
    way, may_be_given = parameter_names(module, subject.input)[0], {_LONGEST, *_POSITIONS}

    def answer(module: nn.Module, x: Tensor, known: Mapping[str, Any], name: str) -> Tensor:
        given = {key: value for key, value in known.items() if key in parameters and key in {name, *may_be_given}}
        return checked_answer(subject, called(module, x, way, given), x)[0]

    def reading(name: str) -> _Reading:
        return lambda module, x, cu_seqlens: answer(module, x, _known_of_starts(x, cu_seqlens), name)

    def separates(name: str) -> bool:
        parts = _PARTS if name in _POSITIONS else (_LENGTH,)
        return attempt(lambda: _gives_each_its_own(subject, reading(name), parts)) is True

    known = [name for name in (_STARTS, *_NUMBERS, *_POSITIONS) if name in parameters]
    known = [name for name in known if parameters[name].default is None]
    first = known[0] if known and separates(known[0]) else ""
    if not first:
        return subject
    note = f"packed rows are read by forward(x, {first}=...)"
    by_token = next((name for name in known if name != _STARTS and (name == first or separates(name))), "")
    if not by_token:
        return replace(subject, packed=reading(first), notes=(*subject.notes, note))
    return replace(
        subject,
        packed=reading(first),
        documents=lambda module, x, ids: answer(module, x, _known_of_numbers(ids), by_token),
        notes=(*subject.notes, note if by_token == first else f"{note} and forward(x, {by_token}=...)"),
    )


def _known_of_starts(x: Tensor, cu_seqlens: Tensor) -> dict[str, Any]:
    """What a forward may be given of sequences packed into one row, by the names of its parameters."""
    lengths = cu_seqlens.diff()
    numbers = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    return {**_known_of_numbers(numbers[None]), _STARTS: cu_seqlens, _LONGEST: int(lengths.max())}


def _known_of_numbers(numbers: Tensor) -> dict[str, Any]:
    """The same of several rows, of the number [B, S] that each token's sequence has."""
    tokens = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    positions = tokens - (tokens * begins).cummax(1).values
    return {**dict.fromkeys(_NUMBERS, numbers), **dict.fromkeys(_POSITIONS, positions)}


def _gives_each_its_own(subject: Subject, packed: _Reading, parts: Sequence[int]) -> bool:
    """Whether sequences that fill the row give what each gives alone."""
    sp = built(subject)
    x = sp.input(_LENGTH)
    starts = torch.tensor([0, *accumulate(parts)], dtype=torch.int32, device=x.device)
    with torch.no_grad():
        alone = torch.cat([sp(part) for part in x.split(list(parts), dim=1)], dim=1).double()
        found = packed(sp.module, x.clone(), starts).double()
    return bool((found - alone).abs().max() <= _CLOSE * float(alone.abs().max()))
