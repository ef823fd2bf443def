"""Finds out how a plain token model gives its own loss: by a forward that takes labels and answers a loss."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.input_discovery import called, parameter_names
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject

_LABELS = ("labels", "targets", "target")
_LENGTH, _ROWS = 9, 2
_NEAR = 1e-3


def with_loss(subject: Subject, module: nn.Module) -> Subject:
    """The subject with the loss that its forward answers to ids as labels; as it is where there is none.

    One that takes labels as they stand expects whoever calls it to shift them, and is given the next tokens.
    """
    if subject.input != "tokens" or subject.offers("loss") or subject.max_length < _LENGTH:
        return subject
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught):
        return subject
    for name in (name for name in _LABELS if name in parameters and parameters[name].default is None):
        way = parameter_names(module, subject.input)[0]

        def loss(module: nn.Module, ids: Tensor, name: str = name, way: str | None = way) -> Tensor:
            return _loss_of(subject, called(module, ids, way, {name: ids}), ids)

        def shifted(module: nn.Module, ids: Tensor, name: str = name, way: str | None = way) -> Tensor:
            given = ids[:, :-1]
            return _loss_of(subject, called(module, given, way, {name: ids[:, 1:].contiguous()}), given)

        taken = attempt(lambda name=name, way=way: _takes_them_as_they_stand(subject, name, way))
        if isinstance(taken, Caught):
            taken = attempt(lambda name=name, way=way: _reads_the_last_token(subject, name, way))
        if not isinstance(taken, Caught):
            shift = " shifted by one" if taken else ""
            note = f"its own loss is taken by forward(ids, {name}=ids{shift}), which was found by its names"
            return replace(subject, loss=shifted if taken else loss, notes=(*subject.notes, note))
    return subject


def _loss_of(subject: Subject, answer: Any, ids: Tensor) -> Tensor:
    """The only number in an answer, or the one that is called the loss."""
    named = answer.get("loss") if isinstance(answer, Mapping) else getattr(answer, "loss", None)
    if isinstance(named, Tensor) and named.numel() == 1:
        return named
    numbers = [each for each in checked_answer(subject, answer, ids)[1].values() if each.numel() == 1]
    if len(numbers) != 1:
        raise TypeError(f"expected one number beside the output, got {len(numbers)}")
    return numbers[0]


def _takes_them_as_they_stand(subject: Subject, name: str, way: str | None) -> bool:
    """Whether position i is scored against label i: its gradient falls at that label's logit and nowhere else.

    Raises what a call with labels raises, and where the loss is not computed from the logits that are returned.
    """
    sp = built(subject)
    ids = 1 + sp.input(_LENGTH, _ROWS) % (subject.width - 2)
    with torch.enable_grad():
        answer = called(sp.module, ids, way, {name: ids})
        logits = checked_answer(subject, answer, ids)[0]
        (gradient,) = torch.autograd.grad(_loss_of(subject, answer, ids), logits)
    return bool((gradient.argmin(-1) == ids).all())


def _reads_the_last_token(subject: Subject, name: str, way: str | None) -> bool:
    """Whether what the last label does to the loss depends on the last token, which one shifted inside leaves out.

    For a loss that is computed from something else than the logits that are returned. Raises what a call with labels
    raises, and ValueError where the label does nothing.
    """
    sp = built(subject)
    ids = 1 + sp.input(_LENGTH, _ROWS) % (subject.width - 2)
    other = ids.clone()
    other[:, -1] = 1 + ids[:, -1] % (subject.width - 2)

    def loss(given: Tensor, labels: Tensor) -> float:
        return float(_loss_of(subject, called(sp.module, given, way, {name: labels}), given))

    with torch.no_grad():
        before, after = (loss(given, other) - loss(given, ids) for given in (ids, other))
    if not before or not after:
        raise ValueError("another label leaves the loss as it is")
    return abs(before - after) > _NEAR * max(abs(before), abs(after))
