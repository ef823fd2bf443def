"""Variances that are taken for standard deviations, and the reverse, by names and by how else they are used."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.own_files import OwnDefinition, own_definitions
from nsa_doctor.probes.numerics.spread_links import linked
from nsa_doctor.probes.numerics.spread_names import DEVIATION, VARIANCE, named
from nsa_doctor.probes.numerics.spread_uses import Use, resolved, uses_in
from nsa_doctor.probes.numerics.spreads import Scope

_WORDS = re.compile(r"gaussian_nll_loss|GaussianNLLLoss|Normal\(|\brandn|torch\.normal|random\.(normal|gauss)")
_SAID = re.compile(r"standard deviation|\bstd\b|stddev|sigma\s?(\^|\*\*)\s?2|sigma²|σ²", re.IGNORECASE)
_WORDS_OF = {DEVIATION: "a standard deviation", VARIANCE: "a variance"}


@dataclass(frozen=True)
class Mistaken:
    """A value that is used as what it is not; is_certain: that is seen of more than a name which is used loosely."""

    place: Place
    what: str
    is_certain: bool


def mistaken_spreads(sp: BuiltModule) -> Iterator[Mistaken]:
    """Of the files within reach, each line once."""
    return mistaken_in(list(own_definitions(sp, _WORDS)))


def mistaken_in(definitions: Sequence[OwnDefinition]) -> Iterator[Mistaken]:
    """Of these functions."""
    scopes = [Scope(each) for each in definitions]
    _share_attributes(scopes)
    losses = _losses(scopes)
    uses = [(use, scope) for scope in scopes for use in uses_in(scope, losses)]
    group = linked(scopes) if any(not use.agrees for use, _ in uses) else {}
    together: dict[str, list[tuple[Use, Scope]]] = {}
    for use, scope in uses:
        together.setdefault(group.get(use.spread.slot, use.spread.slot), []).append((use, scope))
    seen: set[tuple[str, int]] = set()
    for use, scope in uses:
        if use.agrees:
            continue
        mistaken = _judged(use, scope, together[group.get(use.spread.slot, use.spread.slot)])
        if mistaken and (key := (mistaken.place.file, mistaken.place.line)) not in seen:
            seen.add(key)
            yield mistaken


def _judged(use: Use, scope: Scope, together: Sequence[tuple[Use, Scope]]) -> Mistaken | None:
    says = use.spread.says
    right = next(((each, at) for each, at in together if each.agrees), None)
    if right is None and any(each.implied == use.implied and each.power != use.power for each, _ in together):
        return None  # it is what both take it for, and has the name of another
    if not use.is_certain and (right is None or not right[0].is_certain):
        return None
    is_derived = use.spread.exponent != 1 and not use.spread.is_log
    is_seen = (
        right is not None or says.is_sure or is_derived or bool(_SAID.search(ast.get_docstring(scope.of.node) or ""))
    )
    if not is_seen and "scale" in use.spread.name:
        return None
    wanted = {-VARIANCE: "the inverse of a variance"}.get(int(use.power)) or _WORDS_OF[abs(int(use.power))]
    text = f"{use.what} takes {wanted} and is given {_described(use)}"
    if right is not None:
        text += f"; it is used as {_WORDS_OF[says.power]} at {right[1].of.place(right[0].node.lineno).short_line}"
    return Mistaken(scope.of.place(_line(use)), text, is_seen)


def _line(use: Use) -> int:
    """Of the assignment that makes it, where that is named for what is wanted, else of the use."""
    made = use.spread.made
    target = made.targets[0] if made is not None else None
    says = named(target.id) if isinstance(target, ast.Name) else None
    is_named_so = says is not None and says.power == use.power and not says.is_log
    return made.lineno if made is not None and is_named_so else use.node.lineno


def _described(use: Use) -> str:
    spread, says = use.spread, use.spread.says
    if spread.is_log:
        return f"{spread.name}, the logarithm of {_WORDS_OF[says.power]}"
    if says.is_log and spread.exponent == 1:
        return f"exp({spread.name}), {_WORDS_OF[says.power]}"
    if spread.exponent == 1:
        return f"{spread.name}, {_WORDS_OF[says.power]}"
    power = says.power * spread.exponent
    base = f"exp({spread.exponent:g} * {spread.name})" if says.is_log else f"{spread.name} ** {spread.exponent:g}"
    return base + (f", {_WORDS_OF[int(power)]}" if power in _WORDS_OF else "")


def _losses(scopes: Sequence[Scope]) -> frozenset[str]:
    """The texts that stand for a GaussianNLLLoss of torch's: what makes one, and what it is assigned to."""
    found: set[str] = set()
    for scope in scopes:
        for node in scope.of.nodes:
            if isinstance(node, ast.Call) and resolved(node.func, scope) is nn.GaussianNLLLoss:
                found.add(ast.unparse(node))
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                is_it = resolved(node.value.func, scope) is nn.GaussianNLLLoss
                found |= {ast.unparse(target) for target in node.targets if is_it}
    return frozenset(found)


def _share_attributes(scopes: Sequence[Scope]) -> None:
    """What the methods of a class assign to its object, for all of them."""
    shared: dict[int, dict[str, list[tuple[ast.expr, Scope]]]] = {}
    for scope in scopes:
        if scope.of.kind is not None:
            scope.attributes = shared.setdefault(id(scope.of.kind), {})
        for node in scope.of.nodes:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    scope.attributes.setdefault(target.attr, []).append((node.value, scope))  # type: ignore[attr-defined]
