"""Shares of dropout that modules hold, and whether a pass in training mode draws random numbers for them."""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.without_effect import is_mentioned
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.behaviour.dropping_parts import is_dropping, share_of
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.hooks.read_where_given import is_read_where_given
from nsa_doctor.probes.hooks.unread_arguments import UnreadArgument
from nsa_doctor.probes.internal import DROPOUTS, part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.state import saved_generators

LENGTH, _ROWS = 37, 2
_OF_CONDITIONS = frozenset({"cond", "uncond", "cfg", "guidance", "caption", "prompt"})  # words of a name


@dataclass(frozen=True)
class Share:
    """A share above zero that a module holds by that name, as a number or as a dropout; `is_named` where it is read.

    `is_given` where its constructor is given it and does nothing with it.
    """

    holder: nn.Module
    path: str
    name: str
    share: float
    is_named: bool
    is_given: bool = False


@dataclass(frozen=True)
class Idle:
    """A share that nothing applies, and whether its holder draws random numbers for something else."""

    share: Share
    is_holder_drawing: bool


def idle_shares(sp: BuiltModule, shares: list[Share]) -> list[Idle]:
    """Those among them that one pass does not apply."""
    drawing = _watched(sp)
    idle = _innermost([each for each in shares if _is_idle(each, drawing)])
    return [Idle(each, drawing[id(each.holder)]) for each in idle]


def place_of_holder(root: nn.Module, path: str) -> Place:
    """Where the forward of the module at that path is; of one of torch's own, where the subject makes it."""
    holder, owner, name = part_at(root, path), path, ""
    while owner and type(part_at(root, owner)).__module__.startswith("torch."):
        owner, _, name = owner.rpartition(".")
    made = line_that_makes(part_at(root, owner), name) if name else None
    place = definition_place(holder if made is None else part_at(root, owner))
    place = place if made is None else replace(place, **vars(made), module_class=type(holder).__name__)
    return in_subject(replace(place, module=path), root)


def _innermost(idle: list[Share]) -> list[Share]:
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


def shares_in(root: nn.Module) -> Iterator[Share]:
    """Of every module in training mode; those of dropouts themselves are their holder's.

    What waits for an argument that a call may leave out is none.
    """
    for path, holder in root.named_modules():
        if not holder.training or isinstance(holder, DROPOUTS):
            continue
        for name, part in holder.named_children():
            share = _share(part) if part.training else None
            if share is not None and not is_read_where_given(holder, name):
                own = f"{path}.{name}".removeprefix(".")
                yield Share(holder, path, name, share, is_mentioned(root, own) or _is_read_beside(holder, name))
        for name, value in vars(holder).items():
            if is_share(name, value) and not is_read_where_given(holder, name):
                yield Share(holder, path, name, value, is_named=True)


def _share(part: nn.Module) -> float | None:
    """What a dropout drops, torch's or another's; None of none, and of another part."""
    if isinstance(part, DROPOUTS):
        return part.p if 0 < part.p < 1 else None
    held = share_of(part) if is_dropping(part) else None
    return None if held is None else held[1]


def is_share(name: str, value: object) -> bool:
    """Whether an argument of that name is a share of dropout above zero; not of conditions, which a call may lack."""
    is_named = "drop" in name.lower() and not _OF_CONDITIONS & set(name.lower().split("_"))
    return is_named and isinstance(value, float) and 0 < value < 1


def shares_given(root: nn.Module, unread: Sequence[UnreadArgument]) -> Iterator[Share]:
    """Of every module in training mode whose constructor was given one and does not read it."""
    paths = {part: path for path, part in root.named_modules()}
    for each in unread:
        if each.module in paths and each.module.training:
            yield Share(each.module, paths[each.module], each.name, each.value, is_named=True, is_given=True)


def _is_read_beside(holder: nn.Module, name: str) -> bool:
    """Whether a function in the file of its class reads an attribute of that name: of whatever it is given."""
    text = attempt(lambda: inspect.getsource(sys.modules[type(holder).__module__]))
    return not isinstance(text, str) or re.search(rf"\.{name}\b(?!\s*[:=][^=])", text) is not None


def _watched(sp: BuiltModule) -> dict[int, bool]:
    """Whether each module that is called in one pass draws random numbers."""
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
        sp(sp.input(min(LENGTH, sp.subject.max_length), _ROWS))
    finally:
        for handle in handles:
            handle.remove()
    return drawing


def _is_same(one: Any, other: Any) -> bool:
    """Whether two states of generators are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def _is_idle(share: Share, drawing: dict[int, bool]) -> bool:
    """Whether its holder's forward runs and drops nothing, or has a dropout that it neither calls nor names."""
    part = dict(share.holder.named_children()).get(share.name)
    if id(share.holder) not in drawing or (part is not None and id(part) in drawing):
        return False
    return not drawing[id(share.holder)] or (part is not None and not share.is_named)
