"""Finds out how a plain module reads packed sequences: by a forward that takes where each starts or which it is."""

import inspect
from collections.abc import Callable, Sequence
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


def with_packing(subject: Subject, module: nn.Module) -> Subject:
    """The subject, whose forward reads packed sequences where one alone in a row gives what the row gives unpacked.

    Positions that begin again with each are given beside, where it takes them. They alone may be what separates
    sequences: where two are seen to be kept apart by them.
    """
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught) or subject.offers("packed") or subject.max_length < _LENGTH:
        return subject
    names = (_STARTS, *_NUMBERS, *_POSITIONS)
    name = next((each for each in names if each in parameters and parameters[each].default is None), "")
    if not name:
        return subject
    way = parameter_names(module, subject.input)[0]

    def packed(module: nn.Module, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        given = {key: value for key, value in _known_of(x, cu_seqlens, name).items() if key in parameters}
        answer = called(module, x, way, given)
        return checked_answer(subject, answer, x)[0]

    parts = _PARTS if name in _POSITIONS else (_LENGTH,)
    if attempt(lambda: _gives_each_its_own(subject, packed, parts)) is not True:
        return subject
    return replace(subject, packed=packed, notes=(*subject.notes, f"packed rows are read by forward(x, {name}=...)"))


def _known_of(x: Tensor, cu_seqlens: Tensor, name: str) -> dict[str, Any]:
    """What a forward may be given of packed sequences, by the names of its parameters."""
    lengths = cu_seqlens.diff()
    starts = cu_seqlens[:-1].long().repeat_interleave(lengths)
    numbers = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    positions = torch.arange(x.shape[1], device=x.device) - starts
    known = {_POSITIONS[0]: positions[None]}
    if name == _STARTS:
        return {**known, _STARTS: cu_seqlens, _LONGEST: int(lengths.max())}
    return {**known, name: positions[None] if name in _POSITIONS else numbers[None]}


def _gives_each_its_own(
    subject: Subject, packed: Callable[[nn.Module, Tensor, Tensor], Tensor], parts: Sequence[int]
) -> bool:
    """Whether sequences that fill the row give what each gives alone."""
    sp = built(subject)
    x = sp.input(_LENGTH)
    starts = torch.tensor([0, *accumulate(parts)], dtype=torch.int32, device=x.device)
    with torch.no_grad():
        alone = torch.cat([sp(part) for part in x.split(list(parts), dim=1)], dim=1).double()
        found = packed(sp.module, x.clone(), starts).double()
    return bool((found - alone).abs().max() <= _CLOSE * float(alone.abs().max()))
