"""Methods that initialise parameters by their names, that nothing calls, and what they would make of these."""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.method_names import is_named_elsewhere
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.copies import copied_module
from nsa_doctor.probes.model.given_weights import left_to_defaults
from nsa_doctor.probes.model.identity import loaded_files
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.subject.contract import Subject

_PARTS = r"(params?|parameters?|weights?|layers?|bias(es)?|embeddings?|modules?|linears?|convs?)"
_NAME = re.compile(
    rf"_*((init|initiali[sz]e|reset)_([a-z]+_)?{_PARTS}|{_PARTS}_(init|initiali[sz]ation|reset)|initiali[sz]e)_*"
)
_OF_A_MODULE = ("module", "m", "mod", "layer", "submodule")
_WRITING = re.compile(r"\w+_|apply|init|glorot|zeros|ones|uniform|normal|constant")
_OWN = 3  # the rank of the subject's own code
_FEWEST = 16  # values of which a standard deviation says something
_RATIO, _CHANCE = 1.15, 5.0  # of standard deviations; how much less certain that of few values is


@dataclass(frozen=True)
class IdleInitialiser:
    """A method that nothing calls, at its first line, and the parameter that is furthest from what it would give."""

    place: Place
    name: str
    parameter: str
    now: str
    then: str
    num_others: int


def idle_initialisers(subject: Subject) -> Iterator[IdleInitialiser]:
    """Those of the subject's own classes that change the distribution of a parameter left to defaults."""
    frames = FrameFilter(subject.packages)
    seed_everything(subject.seed)
    with started() as codes:
        module = ask("build", lambda: subject.build(subject.seed), None)
    if nn.Module.load_state_dict.__code__ in codes:
        return  # its weights come from elsewhere
    found = {(kind, name): path for path, kind, name in _methods(module, frames, codes)}
    loaded = set(loaded_files(subject.packages).values())
    left = {each: path for each, path in found.items() if not is_named_elsewhere(*each, frames, loaded)}
    if not left:
        return
    module, defaults = left_to_defaults(subject)
    seen: set[CodeType] = set()
    for (kind, name), path in left.items():
        code = _function(kind, name).__code__
        effect = None if code in seen else _effect(module, path, name, defaults)
        if effect is not None:
            seen.add(code)
            place = Place(
                module=path, module_class=kind.__name__, file=code.co_filename, line=line_of(code), function=name
            )
            yield IdleInitialiser(place, name, *effect)


@contextmanager
def started() -> Iterator[set[CodeType]]:
    """The code of every Python function that begins to run in this region."""
    codes: set[CodeType] = set()

    def look(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    with calls_seen_by(look):
        yield codes


def _methods(root: nn.Module, frames: FrameFilter, codes: set[CodeType]) -> Iterator[tuple[str, type, str]]:
    """Path, class and name of every initialiser that did not run, of a class that was constructed."""
    kinds: dict[type, str] = {}
    for path, module in root.named_modules():
        kinds.setdefault(type(module), path)
    for kind, path in kinds.items():
        for name in sorted({each for base in kind.__mro__ for each in vars(base) if _NAME.fullmatch(each)}):
            every = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]
            held = [inspect.unwrap(getattr(each, "__func__", each)) for each in every if callable(each)]
            own = [getattr(each, "__code__", None) for each in held]
            constructor: Any = getattr(inspect.unwrap(kind.__init__), "__code__", None)
            is_own = bool(own) and all(code is not None and frames.rank_of(code) == _OWN for code in own)
            if (
                is_own
                and len(own) == len(every)
                and constructor in codes
                and codes.isdisjoint(own)
                and _is_ready(kind, name)
            ):
                yield path, kind, name


def _function(kind: type, name: str) -> Any:
    return inspect.unwrap(getattr(kind, name))


def _is_ready(kind: type, name: str) -> bool:
    """Whether it can be called without arguments, or with a module, and by its source writes into parameters."""
    function = _function(kind, name)
    tree = attempt(lambda: ast.parse(textwrap.dedent(inspect.getsource(function))))
    if isinstance(tree, Caught) or getattr(function, "__isabstractmethod__", False) or inspect.ismethod(function):
        return False
    names = [last_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    data = any(isinstance(node, ast.Attribute) and node.attr == "data" for node in ast.walk(tree))
    needed = needed_arguments(kind, name)
    return (data or any(_WRITING.fullmatch(each) or _NAME.fullmatch(each) for each in names)) and (
        not needed or (needed[0] in _OF_A_MODULE and needed[1:] == [])
    )


def needed_arguments(kind: type, name: str) -> list[str]:
    """The arguments that it has to be given, beside the object."""
    parameters = list(inspect.signature(_function(kind, name)).parameters.values())
    is_static = isinstance(inspect.getattr_static(kind, name), staticmethod)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name
        for each in parameters[0 if is_static else 1 :]
        if each.default is inspect.Parameter.empty and each.kind not in variable
    ]


def _effect(root: nn.Module, path: str, name: str, defaults: dict[str, bool]) -> tuple[str, str, str, int] | None:
    """The parameter that it changes most, what that is like and would be, and how many others it changes clearly."""
    with unobserved(), preserved_state():
        after = attempt(lambda: copied_module(root))
        if isinstance(after, Caught):
            return None
        holder = part_at(after, path)
        method: Any = getattr(holder, name)
        is_of_a_module = bool(needed_arguments(type(holder), name))
        if isinstance(attempt(lambda: holder.apply(method) if is_of_a_module else method()), Caught):
            return None
        new = dict(after.named_parameters())
    changed: list[tuple[bool, float, str]] = []
    for each, parameter in root.named_parameters():
        if each in defaults and each in new and not is_lazy(parameter) and new[each].shape == parameter.shape:
            far = _distance(parameter.detach().double(), new[each].detach().double(), is_unwritten=defaults[each])
            changed += [(parameter.ndim > 1, far, each)] if far > 1 else []
    if not changed:
        return None
    most = max(changed)[2]
    now = "memory that nothing has written" if defaults[most] else _said(dict(root.named_parameters())[most])
    return most, now, _said(new[most]), len(changed) - 1


def _distance(now: Tensor, then: Tensor, *, is_unwritten: bool) -> float:
    """How far two sets of values are apart as distributions, more than 1 where that is clear."""
    if now.numel() < 2 or torch.equal(now, then) or not bool(torch.isfinite(then).all()):
        return 0.0
    if is_unwritten:
        return math.inf
    is_flat, would_be = (bool((each == each.flatten()[0]).all()) for each in (now, then))
    if is_flat != would_be:
        return math.inf
    if is_flat:
        return math.inf
    if now.numel() < _FEWEST:
        return 0.0
    ratio = float(then.std() / now.std())
    return max(ratio, 1 / ratio) / (_RATIO + _CHANCE / math.sqrt(now.numel()))


def _said(tensor: Tensor) -> str:
    values = tensor.detach().double()
    if bool((values == values.flatten()[0]).all()):
        return f"{float(values.flatten()[0]):.3g} throughout"
    return f"a standard deviation of {float(values.std()):.3g}"


def line_of(code: CodeType) -> int:
    """The line of its `def`, below decorators."""
    lines = attempt(lambda: inspect.getsourcelines(code)[0])
    texts = [] if isinstance(lines, Caught) else lines
    ahead = next((number for number, text in enumerate(texts) if text.lstrip().startswith(("def ", "async def "))), 0)
    return code.co_firstlineno + ahead
