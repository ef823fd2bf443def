"""FWD231 dropout-never-applied

Detects: a module with a dropout of its own, a module or a share, whose forward draws no random number in training
    mode; and a dropout that nothing calls, which no method of its holder names.
Matters: the model trains without the regularisation that its configuration states, and another run with another share
    is the same run.
Fix: hand the share on to what attends (`dropout_p=self.dropout if self.training else 0.0`), or call the dropout.

Example:
    # faulty
    y = scaled_dot_product_attention(q, k, v, dropout_p=0.0)  # beside self.dropout = nn.Dropout(0.1)
    # correct
    y = scaled_dot_product_attention(q, k, v, dropout_p=self.dropout.p if self.training else 0.0)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.without_effect import is_mentioned
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.internal import DROPOUTS
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import saved_generators
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 37, 2


@dataclass(frozen=True)
class _Share:
    """A share above zero that a module holds by that name, as a number or as a dropout; `is_named` by a method."""

    holder: nn.Module
    path: str
    name: str
    share: float
    is_named: bool


def run(subject: Subject) -> Iterator[Finding]:
    if "train" not in subject.modes:
        raise NotApplicableError("it does not run in training mode")
    sp = built(subject, mode="train")
    shares = list(_shares(sp.module))
    if not shares:
        raise NotApplicableError("it holds no share of dropout above zero")
    drawing, called = _watched(sp)
    idle = _innermost([each for each in shares if _is_idle(each, drawing, called)])
    kinds = {(type(each.holder), each.name, each.share): each for each in reversed(idle)}
    for (kind, name, share), first in kinds.items():
        others = sum((type(each.holder), each.name, each.share) == (kind, name, share) for each in idle) - 1
        more = f" (and {others} more of its class)" if others else ""
        draws = "" if drawing[id(first.holder)] else "; its forward draws no random number"
        yield Finding(
            message=(
                f"the dropout of {share:g} that {first.path or 'the module'}{more} holds as {name} is not applied in "
                f"training mode{draws}"
            ),
            where=in_subject(replace(definition_place(first.holder), module=first.path), sp.module),
            evidence={"length": min(_LENGTH, subject.max_length), "mode": "train", "share": share, "attribute": name},
            repro=command_for(subject, "FWD231"),
        )


def _innermost(idle: list[_Share]) -> list[_Share]:
    """Without those that hold another of the same share, to which they have handed theirs on."""
    return [
        each
        for each in idle
        if not any(
            other.share == each.share and other.path != each.path and f"{other.path}.".startswith(_beginning(each.path))
            for other in idle
        )
    ]


def _beginning(path: str) -> str:
    return f"{path}." if path else ""


def _shares(root: nn.Module) -> Iterator[_Share]:
    """Of every module in training mode; those of dropouts themselves are their holder's."""
    for path, holder in root.named_modules():
        if not holder.training or isinstance(holder, DROPOUTS):
            continue
        for name, part in holder.named_children():
            if isinstance(part, DROPOUTS) and part.training and 0 < part.p < 1:
                own = f"{path}.{name}".removeprefix(".")
                yield _Share(holder, path, name, part.p, is_mentioned(root, own))
        for name, value in vars(holder).items():
            if "drop" in name.lower() and isinstance(value, float) and 0 < value < 1:
                yield _Share(holder, path, name, value, is_named=True)


def _watched(sp: BuiltModule) -> tuple[dict[int, bool], set[int]]:
    """Whether each module that is called in one pass draws random numbers, and the modules that are called."""
    drawing: dict[int, bool] = {}
    begun: list[tuple[int, dict[str, Any]]] = []

    def before(module: nn.Module, *_given: object) -> None:
        begun.append((id(module), saved_generators()))

    def after(module: nn.Module, *_given: object) -> None:
        while begun:
            number, states = begun.pop()
            if number == id(module):
                drawing[number] = drawing.get(number, False) or not _is_same(states, saved_generators())
                return

    handles = [
        handle
        for part in sp.module.modules()
        for handle in (part.register_forward_pre_hook(before), part.register_forward_hook(after))
    ]
    try:
        sp(sp.input(min(_LENGTH, sp.subject.max_length), _ROWS))
    finally:
        for handle in handles:
            handle.remove()
    return drawing, set(drawing)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two states of generators are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def _is_idle(share: _Share, drawing: dict[int, bool], called: set[int]) -> bool:
    """Whether its holder's forward runs and drops nothing, or has a dropout that it neither calls nor names."""
    if id(share.holder) not in called:
        return False
    part = dict(share.holder.named_children()).get(share.name)
    is_left_out = part is not None and id(part) not in called and not share.is_named
    return is_left_out or not drawing[id(share.holder)]


def planted(subject: Subject) -> Subject:
    class Undropped(nn.Module):
        """The subject, and a dropout whose share is handed on to nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output

    return replace(subject, build=lambda _seed: Undropped(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
