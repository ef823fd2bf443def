"""Finds out how a plain module masks padding: by a forward that takes an attention_mask of ones and zeros."""

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

_MASK = "attention_mask"
_LENGTH, _ROWS, _CLOSE, _LOUD = 9, 2, 1e-3, -10_000
Masked = Callable[[nn.Module, Tensor, Tensor], Tensor]


def with_padding(subject: Subject, module: nn.Module) -> Subject:
    """The subject, whose forward masks padding where a mask of ones gives what none does and one of zeros does not."""
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught) or subject.offers("padded") or subject.max_length < _LENGTH:
        return subject
    if _MASK not in parameters or parameters[_MASK].default is not None:
        return subject
    way = parameter_names(module, subject.input)[0]

    def masked(module: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        given: dict[str, Any] = {_MASK: mask}
        answer = called(module, x, way, given)
        return checked_answer(subject, answer, x)[0]

    def padded(module: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        return masked(module, x, keep.long())

    if attempt(lambda: _marks_padding(subject, masked)) is not True:
        return subject
    return replace(subject, padded=padded, notes=(*subject.notes, f"padding is masked by forward(x, {_MASK}=...)"))


def _marks_padding(subject: Subject, masked: Masked) -> bool:
    """Whether a mask of ones changes nothing, others do, and it is none that is added to scores.

    What is added changes nothing where it is zero everywhere, and its size counts and not only whether it is zero.
    """
    sp = built(subject)
    x = sp.input(_LENGTH, _ROWS)
    ones = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    one = ones * 0
    one[:, 0] = 1

    def like(first: Tensor | Caught, second: Tensor) -> bool:
        due = _CLOSE * float(plain.abs().max())
        return isinstance(first, Tensor) and bool((first - second).abs().max() <= due)

    def given(mask: Tensor) -> Tensor | Caught:
        return attempt(lambda: masked(sp.module, x.clone(), mask).double())

    with torch.no_grad():
        plain = sp(x).double()
        if not like(given(ones), plain):
            return False
        if not like(given(ones * 0), plain):
            return True
        alone = given(one)
        return isinstance(alone, Tensor) and not like(alone, plain) and like(given(one * _LOUD), alone)
