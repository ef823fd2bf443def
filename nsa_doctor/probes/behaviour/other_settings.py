"""Numbers that constructors of modules are given, and whether anything is another with another number."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.tensor_owners import tensors_held
from nsa_doctor.probes.hooks.unread_arguments import UnreadArgument, unread_arguments
from nsa_doctor.probes.internal import tree_leaves
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.stepping import step
from nsa_doctor.probes.model.training import new_optimizer
from nsa_doctor.subject.contract import Subject

# What acts on some values alone, where something is drawn, or before weights are overwritten.
_SELDOM = re.compile(
    r"drop|eps|clip|clamp|max|min|limit|thresh|capacity|init|std|seed|top_|long|short|ntk|len|warm|keep|mask|jitter"
    r"|noise|prob|momentum|slope|tol",
    re.IGNORECASE,
)
_OF_LOSSES = re.compile(r"loss|coef|weight|smooth|penal|label|balanc|lambda|regular", re.IGNORECASE)
_WHOLE = re.compile(r"\w*(theta|base|temperature|alpha|scale)")
_MOST = 8
_LENGTH = 67
_NUM_STEPS = 2

_Seen = tuple[tuple[tuple[int, ...], float], ...]


@dataclass(frozen=True)
class IdleSetting:
    """A number that a constructor is given, and another with which nothing is another.

    is_wrong: whether whoever set it stands outside of its package and meant it, or nothing in its class reads it; else
    what reads it may wait for another setting.
    """

    given: UnreadArgument
    other: float

    @property
    def is_wrong(self) -> bool:
        is_set = self.given.is_from_outside and self.given.is_meant
        return is_set or not _is_read(type(self.given.module), self.given.name)


def settings_without_effect(subject: Subject) -> list[IdleSetting]:
    """Numbers, given beside their defaults, of which another changes nothing that can be seen."""
    given = {} if subject.is_slow else {(each.code, each.name): each for each in _given(subject)}
    if not given:
        return []
    due = _seen(subject)
    found = []
    for each in list(given.values())[:_MOST]:
        other = float(each.default) if _is_number(each.default) else each.value / 2
        with unobserved(), _changed(each, other):
            is_same = attempt(lambda: _seen(subject) == due)
        if is_same is True:
            found.append(IdleSetting(each, other))
    return found


def _is_read(kind: type[nn.Module], name: str) -> bool:
    """Whether a class's source does more with an argument of its constructor than to keep it."""
    tree = attempt(lambda: ast.parse(textwrap.dedent(inspect.getsource(kind))))
    if not isinstance(tree, ast.Module):
        return True
    kept = {
        target.attr: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == name
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    return any(
        (isinstance(node, ast.Name) and node.id == name and node not in kept.values())
        or (isinstance(node, ast.Attribute) and node.attr in kept)
        for node in ast.walk(tree)
        if isinstance(getattr(node, "ctx", None), ast.Load)
    )


def _given(subject: Subject) -> Iterator[UnreadArgument]:
    is_trained = subject.train_step is not None or subject.loss is not None

    def is_wanted(name: str, value: Any) -> bool:
        is_number = isinstance(value, float) or (_is_number(value) and _WHOLE.fullmatch(name) is not None)
        return is_number and bool(value) and not _SELDOM.search(name) and (is_trained or not _OF_LOSSES.search(name))

    with unread_arguments(is_wanted, reads=lambda code, name: False) as given:
        module = built(subject).module
    parts = set(module.modules())
    for each in given:
        default = attempt(lambda each=each: each.default)
        is_optional = default is None or _is_number(default)
        if each.module in parts and is_optional and default != each.value:
            yield each


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@contextmanager
def _changed(given: UnreadArgument, other: float) -> Iterator[None]:
    """The constructor is handed the other number wherever it is handed this one."""
    original: Any = vars(given.owner)["__init__"]
    signature = inspect.signature(original)

    @wraps(original)
    def constructed(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get(given.name) == given.value:
            bound.arguments[given.name] = other
        original(*bound.args, **bound.kwargs)

    with patch.object(given.owner, "__init__", constructed):
        yield


def _seen(subject: Subject) -> _Seen:
    """What every tensor adds up to: weights, all that modules answer in both modes, gradients, some steps."""
    seen: list[Tensor] = []
    for mode in subject.modes:
        sp = built(subject, mode=mode)
        x = sp.input(min(_LENGTH, subject.max_length), batch=2)
        with _answers(sp.module, seen), torch.enable_grad() if mode == "train" else torch.no_grad():
            output = sp(x)
        if output.requires_grad:
            attempt(output.sum().backward)
            seen += [each.grad for each in sp.module.parameters() if each.grad is not None]
        if mode == "train" and subject.train_step is not None:
            optimizer = new_optimizer(sp.module)
            for _ in range(_NUM_STEPS):
                taken = step(sp, optimizer, x)
                seen.append(torch.tensor(taken.loss))
        seen += [*sp.module.parameters(), *(each.tensor for each in tensors_held(sp.module))]
    return tuple((tuple(each.shape), _sum(each)) for each in seen)


def _sum(tensor: Tensor) -> float:
    values = tensor.detach()
    values = torch.view_as_real(values) if values.is_complex() else values
    return float(torch.nan_to_num(values.double()).sum())


@contextmanager
def _answers(root: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    """Whatever its parts answer in this region is kept."""

    def note(_module: nn.Module, _args: Any, answer: Any) -> None:
        seen.extend(each for each in tree_leaves(answer) if isinstance(each, Tensor))

    with ExitStack() as hooks:
        for module in root.modules():
            hooks.callback(module.register_forward_hook(note).remove)
        yield
