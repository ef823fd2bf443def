"""Finds out how a plain token model gives its own loss: by a forward that takes labels, or by a method."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.decoding_starts import method_of
from nsa_doctor.adapters.input_discovery import called, parameter_names
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject

_LABELS = ("labels", "targets", "target")
_METHODS = ("loss", "compute_loss", "get_loss", "calc_loss", "lm_loss", "training_loss", "nll", "nll_loss")
_LENGTH, _ROWS = 9, 2
_NEAR = 1e-3

Answering = Callable[[nn.Module, Tensor, Tensor], Any]  # what holds the loss of ids, given labels


def with_loss(subject: Subject, module: nn.Module) -> Subject:
    """The subject with the loss that its forward answers to ids as labels, or a method; as it is where there is none.

    One that takes labels as they stand expects whoever calls it to shift them, and is given the next tokens.
    """
    if subject.input != "tokens" or subject.offers("loss") or subject.max_length < _LENGTH:
        return subject
    for call, name, answering in _ways(subject, module):
        taken = attempt(partial(_takes_them_as_they_stand, subject, answering))
        if isinstance(taken, Caught):
            taken = attempt(partial(_reads_the_last_token, subject, answering))
        if not isinstance(taken, Caught):
            shift = " shifted by one" if taken else ""
            note = f"its own loss is taken by {call}(ids, {name}=ids{shift}), which was found by its names"
            loss = partial(_shifted if taken else _unshifted, subject, answering)
            return replace(subject, loss=loss, notes=(*subject.notes, note))
    for name in _METHODS:
        if attempt(partial(_is_of_ids_alone, subject, name)) is True:
            note = f"its own loss is taken by {name}(ids), which was found by its name"
            return replace(subject, loss=partial(_by_method, subject, name), notes=(*subject.notes, note))
    return subject


def _ways(subject: Subject, module: nn.Module) -> Iterator[tuple[str, str, Answering]]:
    """What takes labels, by which name, and how it is asked."""
    for name in _labels_of(module.forward):
        way = parameter_names(module, subject.input)[0]
        yield "forward", name, lambda module, ids, labels, name=name, way=way: called(module, ids, way, {name: labels})
    for method in _METHODS:
        for name in _labels_of(method_of(module, method)):
            yield (
                method,
                name,
                lambda module, ids, labels, method=method, name=name: getattr(module, method)(ids, **{name: labels}),
            )


def _labels_of(function: Any) -> list[str]:
    """The names by which it takes labels: all else than its input and these has to be optional."""
    parameters = attempt(lambda: list(inspect.signature(function).parameters.values()))
    if isinstance(parameters, Caught):
        return []
    required = {each.name for each in parameters[1:] if each.default is each.empty and each.kind <= each.KEYWORD_ONLY}
    names = [name for name in _LABELS if any(name == each.name for each in parameters[1:])]
    return [name for name in names if required <= {name}]


def _unshifted(subject: Subject, answering: Answering, module: nn.Module, ids: Tensor) -> Tensor:
    return _loss_of(subject, answering(module, ids, ids), ids)


def _shifted(subject: Subject, answering: Answering, module: nn.Module, ids: Tensor) -> Tensor:
    given = ids[:, :-1]
    return _loss_of(subject, answering(module, given, ids[:, 1:].contiguous()), given)


def _by_method(subject: Subject, name: str, module: nn.Module, ids: Tensor) -> Tensor:
    return _loss_of(subject, getattr(module, name)(ids), ids)


def _is_of_ids_alone(subject: Subject, name: str) -> bool:
    """Whether the module's method answers a loss to ids, the same to the same. Raises what it raises."""
    sp, ids = _some_ids(subject)
    if method_of(sp.module, name) is None:
        return False
    with torch.enable_grad():
        first, second = (_by_method(subject, name, sp.module, ids.clone()) for _ in range(2))
    return first.requires_grad and bool(torch.equal(first, second))


def _loss_of(subject: Subject, answer: Any, ids: Tensor) -> Tensor:
    """The only number in an answer, or the one that is called the loss."""
    named = answer.get("loss") if isinstance(answer, Mapping) else getattr(answer, "loss", answer)
    first = named[0] if isinstance(named, tuple) and named else named
    if isinstance(first, Tensor) and first.numel() == 1:
        return first
    numbers = [each for each in checked_answer(subject, answer, ids)[1].values() if each.numel() == 1]
    if len(numbers) != 1:
        raise TypeError(f"expected one number beside the output, got {len(numbers)}")
    return numbers[0]


def _takes_them_as_they_stand(subject: Subject, answering: Answering) -> bool:
    """Whether position i is scored against label i: its gradient falls at that label's logit and nowhere else.

    Raises what a call with labels raises, and where the loss is not computed from the logits that are returned.
    """
    sp, ids = _some_ids(subject)
    with torch.enable_grad():
        answer = answering(sp.module, ids, ids)
        logits = checked_answer(subject, answer, ids)[0]
        (gradient,) = torch.autograd.grad(_loss_of(subject, answer, ids), logits)
    return bool((gradient.argmin(-1) == ids).all())


def _reads_the_last_token(subject: Subject, answering: Answering) -> bool:
    """Whether what the last label does to the loss depends on the last token, which one shifted inside leaves out.

    For a loss that is computed from something else than the logits that are returned. Raises what a call with labels
    raises, and ValueError where neither the last label nor the first does anything.
    """
    sp, ids = _some_ids(subject)
    last, first = ids.clone(), ids.clone()
    last[:, -1] = 1 + ids[:, -1] % (subject.width - 2)
    first[:, 0] = 1 + ids[:, 0] % (subject.width - 2)

    def loss(given: Tensor, labels: Tensor) -> float:
        return float(_loss_of(subject, answering(sp.module, given, labels), given))

    with torch.no_grad():
        before, after = (loss(given, last) - loss(given, ids) for given in (ids, last))
        if not before and not after and loss(ids, first) == loss(ids, ids):
            raise ValueError("another label leaves the loss as it is")
    return abs(before - after) > _NEAR * max(abs(before), abs(after))


def _some_ids(subject: Subject) -> tuple[BuiltModule, Tensor]:
    sp = built(subject)
    return sp, 1 + sp.input(_LENGTH, _ROWS) % (subject.width - 2)
