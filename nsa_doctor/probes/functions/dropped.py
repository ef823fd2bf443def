"""A function with dropout, drawn alike in every call, so that its gradients can be held beside differences."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch

from nsa_doctor.probes.functions.binding import parameters_of
from nsa_doctor.probes.functions.calling import Asking, ask
from nsa_doctor.probes.functions.problems import problem_of
from nsa_doctor.probes.functions.uses import with_keywords
from nsa_doctor.subject.function import FunctionSubject, Shape

_NAMES = ("dropout_p", "dropout", "attn_dropout", "dropout_rate")
_SHARE = 0.3
_SEED = 7


def with_dropout(subject: FunctionSubject, shape: Shape) -> FunctionSubject | None:
    """The function with dropout; None where it has none, refuses it, or draws otherwise than torch's generator says."""
    name = next((each for each in _NAMES if each in parameters_of(subject.function).defaults), None)
    if name is None:
        return None
    drops = replace(subject, function=_seeded(with_keywords(subject.function, **{name: _SHARE})), known={})
    problem, forward = problem_of(subject, shape), Asking(wants=())
    first, second, plain = (ask(each, problem, forward).tensors.get("out") for each in (drops, drops, subject))
    if first is None or second is None or plain is None or not torch.equal(first, second) or torch.equal(first, plain):
        return None
    return drops


def _seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*positional: Any, **keywords: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            return function(*positional, **keywords)

    return called
