"""Functions of the subject's own that write into what they are given, through what looks like a copy of it."""

import ast
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.written_aliases import WrittenAlias, is_tensor_named, written_aliases
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.outward_calls import reaches_out, sources_within_call
from nsa_doctor.probes.model.own_files import OwnDefinition, own_definitions
from nsa_doctor.probes.model.state import preserved_state

_WRITING = re.compile(r"(^|\n)[^\n#]*(\][ \t]*[-+*/|&^@%]*=[^=]|[-+*/|&^]=|[a-z0-9]_\(|\bout=)")
_VERBS = re.compile(
    r"^_*(init|reset|fill|update|set|write|store|push|append|insert|put|ema|step|zero|swap|load|sync|clip|overwrite|"
    r"assign|copy|scatter|accumulate|add_to|reorder|inplace|in_place|forward$|__call)|_$|in_?place"
)
_SAYS_SO = re.compile(r"\bin[- _]?place|overwr|mutat|destructive|\bmodif(y|ies)\b", re.IGNORECASE)
_LEFT = re.compile(
    r"(\bnot\b|\bnever\b|n't\b|without)[^.\n]{0,30}(chang|modif|mutat|touch|overwr|in[- ]?place)|unchanged|untouched|"
    r"left as|\bas (they|it) (are|is)\b|\ba (new|changed|modified) (copy|tensor)",
    re.IGNORECASE,
)
_SHAPES = (((3, 5, 8), (3, 5, 8)), ((3, 5), (3,)), ((3, 5), (3, 5)), ((6,), (6,)))
_MOST_ARGUMENTS = 3
_MOST_HANDED_ON = 3


@dataclass(frozen=True)
class FalseCopy:
    """Where the copy is none, and what is known of it."""

    place: Place
    what: str
    argument: str


def copies_that_are_none(sp: BuiltModule) -> Iterator[FalseCopy]:
    """Of the files within reach."""
    return false_copies_in(list(own_definitions(sp, _WRITING)))


def false_copies_in(definitions: Sequence[OwnDefinition]) -> Iterator[FalseCopy]:
    """Of these functions, each argument once."""
    for each in definitions:
        text = _text(each)
        is_left = _LEFT.search(ast.get_docstring(each.node) or "") is not None
        if _is_meant(each, text) and not is_left:
            continue
        for written in written_aliases(each.node):
            known = None if _is_listed(each, written) else _evidence(each, written, is_left, definitions)
            if known is not None:
                alias = written.alias
                made = getattr(alias.step, "lineno", written.line)
                what = (
                    f"`{alias.text}` {alias.why}, and line {written.line} writes into it: into {alias.argument}, "
                    + known
                )
                yield FalseCopy(each.place(made), what, alias.argument)


def _is_meant(each: OwnDefinition, text: str) -> bool:
    """Whether its name, an argument or a remark says that it writes in place."""
    arguments = " ".join(argument.arg for argument in each.parameters)
    return bool(_VERBS.search(each.node.name.lower()) or _SAYS_SO.search(f"{text} {arguments}"))


def _text(each: OwnDefinition) -> str:
    lines = linecache.getlines(each.file)[each.node.lineno - 1 : each.node.end_lineno]
    return "".join(lines) or ast.unparse(each.node)


def _is_listed(each: OwnDefinition, written: WrittenAlias) -> bool:
    """Whether what is given may be a list, or a number, which a slice copies and `+=` leaves as it is."""
    return not written.alias.is_tensor and not is_tensor_named(each.node, written.alias.argument)


def _evidence(
    each: OwnDefinition, written: WrittenAlias, is_left: bool, definitions: Sequence[OwnDefinition]
) -> str | None:
    """What shows that no caller wishes it; None where nothing does, or where a call shows the reverse."""
    argument = written.alias.argument
    seen = attempt(lambda: _asked(each, argument))
    if seen == "":
        return None
    shown = f" ({seen})" if isinstance(seen, str) else ""
    if is_left:
        return f"which its docstring says is left alone{shown}"
    said = _use_of_callers(each, argument, definitions)
    return said and f"which {said}{shown}"


def _use_of_callers(
    each: OwnDefinition, argument: str, definitions: Sequence[OwnDefinition], depth: int = 0
) -> str | None:
    """Which caller reads the argument again, or that callers are outside of these files; None where none has a use."""
    calls = [
        (call, by) for by in definitions for call in by.nodes if isinstance(call, ast.Call) and _is_of(call, each, by)
    ]
    for call, by in calls:
        if line := _read_after(call, by, each, argument):
            return f"{by.node.name} reads again at line {line}"
    if not calls:
        is_own = each.within is None and (each.kind is None or depth > 0) and not each.node.name.startswith("_")
        return "is its caller's" if is_own else None
    for call, by in calls if depth < _MOST_HANDED_ON else ():
        name = _given(call, each, argument)
        is_argument = name in {parameter.arg for parameter in by.parameters}
        is_set = any(_sets(node, name) and node.lineno < call.lineno for node in by.nodes)  # type: ignore[attr-defined]
        if not is_argument or is_set or by.node.name == "forward" or _is_meant(by, _text(by)):
            continue
        if said := _use_of_callers(by, name, definitions, depth + 1):
            return said.replace("is its caller's", f"comes from the caller of {by.node.name}")
    return None


def _sets(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)


def _is_of(call: ast.Call, each: OwnDefinition, by: OwnDefinition) -> bool:
    """Whether it calls that function: a method by its name, another by its own or as one of a module."""
    if not isinstance(call.func, ast.Attribute):
        return each.kind is None and getattr(call.func, "id", "") == each.node.name
    is_of_module = isinstance(call.func.value, ast.Name) and inspect.ismodule(by.names.get(call.func.value.id))
    return call.func.attr == each.node.name and is_of_module == (each.kind is None)


def _read_after(call: ast.Call, by: OwnDefinition, each: OwnDefinition, argument: str) -> int:
    """The line at which the caller reads what it gave after the call; 0 where it does not, or sets it first."""
    name = _given(call, each, argument)
    named = [node for node in by.nodes if isinstance(node, ast.Name) and node.id == name and not _holds(call, node)]
    last = call.end_lineno or call.lineno
    first = min((node.lineno for node in named if node.lineno > last), default=0) if name else 0
    of_call = next(
        (node for node in by.nodes if isinstance(node, ast.stmt) and not _blocks(node) and _holds(node, call)), None
    )
    is_set = any(isinstance(node.ctx, ast.Store) for node in named if of_call is not None and _holds(of_call, node))
    is_left = isinstance(of_call, (ast.Return, ast.Raise))
    at_first = [node for node in named if node.lineno == first]
    is_read = bool(at_first) and any(isinstance(node.ctx, ast.Load) for node in at_first)
    return first if is_read and not is_set and not is_left else 0


def _given(call: ast.Call, each: OwnDefinition, argument: str) -> str:
    """The name of the variable that a call gives for an argument."""
    names = [parameter.arg for parameter in each.parameters]
    given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
    value = given.get(argument)
    return value.id if isinstance(value, ast.Name) else ""


def _blocks(node: ast.AST) -> bool:
    return hasattr(node, "body")


def _holds(node: ast.AST, part: ast.AST) -> bool:
    return any(each is part for each in ast.walk(node))


def _asked(each: OwnDefinition, argument: str) -> str | None:
    """What a call with small tensors changes; empty where all that are served change nothing, None where none is."""
    function: Any = each.names.get(each.node.name)
    if each.kind is not None or not inspect.isfunction(function) or function.__code__.co_name != each.node.name:
        return None
    parameters = inspect.signature(function).parameters
    names = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if argument not in names or len(names) > _MOST_ARGUMENTS:
        return None
    if not all(is_tensor_named(each.node, name) for name in names):
        return None
    if any(map(reaches_out, sources_within_call(function))):
        return None
    was_served = False
    for shapes in _SHAPES:
        for dtype in (torch.float32, torch.int64, torch.bool):
            given = {name: _values(shapes[bool(at)], dtype, at) for at, name in enumerate(names)}
            kept = given[argument].clone()
            with unobserved(), torch.no_grad(), preserved_state():
                answer = attempt(lambda given=given: function(**given))
            if isinstance(answer, Caught):
                continue
            was_served = True
            if num := int((given[argument] != kept).sum()):
                return f"asked with {_shapes(given)}, {num} of {kept.numel()} values of it change"
    return "" if was_served else None


def _values(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return drawn > 0.5 if dtype == torch.bool else (drawn * 90).long() if dtype == torch.int64 else drawn * 4 - 2


def _shapes(given: Mapping[str, Tensor]) -> str:
    return " and ".join(f"{list(each.shape)} of {str(each.dtype).removeprefix('torch.')}" for each in given.values())
