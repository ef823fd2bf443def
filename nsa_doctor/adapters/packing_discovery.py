"""Finds out how a plain module reads packed sequences: by a forward that takes where each starts or which it is."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.input_discovery import called, parameter_names
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject

_STARTS, _POSITIONS, _LONGEST = "cu_seqlens", "position_ids", "max_seqlen"
# The number of the sequence, per token.
_NUMBERS = ("document_ids", "doc_ids", "document_id", "sequence_ids", "seq_ids", "seq_idx")
_LENGTH, _CLOSE = 9, 1e-3


def with_packing(subject: Subject, module: nn.Module) -> Subject:
    """The subject, whose forward reads packed sequences where one alone in a row gives what the row gives unpacked.

    Positions that begin again with each are given beside, where it takes them.
    """
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught) or subject.offers("packed") or subject.max_length < _LENGTH:
        return subject
    name = next((each for each in (_STARTS, *_NUMBERS) if each in parameters and parameters[each].default is None), "")
    if not name:
        return subject
    way = parameter_names(module, subject.input)[0]

    def packed(module: nn.Module, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        given = {key: value for key, value in _known_of(x, cu_seqlens, name).items() if key in parameters}
        answer = called(module, x, way, given)
        return checked_answer(subject, answer, x)[0]

    if attempt(lambda: _is_neutral(subject, packed)) is not True:
        return subject
    return replace(subject, packed=packed, notes=(*subject.notes, f"packed rows are read by forward(x, {name}=...)"))


def _known_of(x: Tensor, cu_seqlens: Tensor, name: str) -> dict[str, Any]:
    """What a forward may be given of packed sequences, by the names of its parameters."""
    lengths = cu_seqlens.diff()
    starts = cu_seqlens[:-1].long().repeat_interleave(lengths)
    numbers = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    positions = torch.arange(x.shape[1], device=x.device) - starts
    sequences = {_STARTS: cu_seqlens, _LONGEST: int(lengths.max())} if name == _STARTS else {name: numbers[None]}
    return {**sequences, _POSITIONS: positions[None]}


def _is_neutral(subject: Subject, packed: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> bool:
    """Whether one sequence that fills the row gives what the row does."""
    sp = built(subject)
    x = sp.input(_LENGTH)
    with torch.no_grad():
        plain = sp(x).double()
        found = packed(sp.module, x.clone(), torch.tensor([0, _LENGTH], dtype=torch.int32, device=x.device)).double()
    return bool((found - plain).abs().max() <= _CLOSE * float(plain.abs().max()))
