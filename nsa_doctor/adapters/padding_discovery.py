"""Finds out how a plain module masks padding: by a forward that takes an attention_mask of ones and zeros."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.input_discovery import parameter_names
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject

_MASK = "attention_mask"  # the one name that means the same everywhere: 1 for a token, 0 for padding
_LENGTH, _ROWS, _CLOSE = 9, 2, 1e-3
Padded = Callable[[nn.Module, Tensor, Tensor], Tensor]


def with_padding(subject: Subject, module: nn.Module) -> Subject:
    """The subject, whose padding its forward's own mask says, where all ones give what no mask does."""
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught) or subject.offers("padded") or subject.max_length < _LENGTH:
        return subject
    if _MASK not in parameters or parameters[_MASK].default is not None:
        return subject
    way = parameter_names(module, subject.input)[0]

    def padded(module: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        given: dict[str, Any] = {_MASK: keep.long()}
        answer = module(x, **given) if way is None else module(**{way: x}, **given)
        return checked_answer(subject, answer, x)[0]

    if attempt(lambda: _means_no_padding(subject, padded)) is not True:
        return subject
    return replace(subject, padded=padded, notes=(*subject.notes, f"padding is masked by forward(x, {_MASK}=...)"))


def _means_no_padding(subject: Subject, padded: Padded) -> bool:
    """Whether a mask of ones changes nothing."""
    sp = built(subject)
    x = sp.input(_LENGTH, _ROWS)
    with torch.no_grad():
        plain = sp(x)
        masked = padded(sp.module, x.clone(), torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
    return bool((masked.double() - plain.double()).abs().max() <= _CLOSE * plain.double().abs().max())
