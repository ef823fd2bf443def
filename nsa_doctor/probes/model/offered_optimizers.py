"""What the subject's own code offers to build an optimizer of a module, or groups of its parameters for one."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.syntax import last_name
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.method_names import text_of
from nsa_doctor.probes.model.given_settings import MODELS, value_of
from nsa_doctor.probes.model.identity import loaded_files
from nsa_doctor.probes.model.idle_initialisers import line_of
from nsa_doctor.probes.model.optimizer_answers import is_optimizer
from nsa_doctor.probes.model.outward_calls import source_of, sources_within_call

_DOING = r"(make|build|create|get|configure|config|set|set_?up|setup|init|initialize|prepare|group|add|define)"
_GROUPS = r"(param|params|parameter|parameters)_?groups?"
_NAME = re.compile(
    rf"_*({_DOING}_(\w+_)?optim(izer)?s?(_\w+)?|optim(izer)?_(grouped_)?(param|parameter)s?|optim_groups"
    rf"|optimizer_grouped_parameters|({_DOING}_)?(\w+_)?{_GROUPS}(_\w+)?|({_DOING}_)?grouped_(param|parameter)s"
    rf"|{_DOING}_grouped_(param|parameter)s|(add|set)_weight_decay|(weight_)?decay_groups|(param|parameter)s_for_optim(izer)?)",
    re.IGNORECASE,
)
_OF_A_PART = re.compile(
    r"_*(?!reset|init|count|num|print|log|freeze|unfreeze|load|save|update|set|export|share|tie|copy|zero|clip)"
    r"((\w+_)?(params|parameters|weights)(_\w+)?|\w+_(optim|optimizer|opt))"
)
_REACHING_OUT = re.compile(
    r"init_process_group|deepspeed|torch\.distributed|\bdist\.|\binput\(|subprocess|urlopen|download|from_pretrained|"
    r"torch\.(load|save)|wandb|makedirs|mkdir|\bopen\(|os\.system|sys\.exit|\bexit\(|barrier\(|\.cuda\(|write_(text|bytes)"
    r"|touch\(|unlink|os\.(remove|rename|replace|rmdir)|rmtree|chdir|environ|putenv|Thread\(|Process\(|np\.save|argv|sleep\("
    r"|SummaryWriter|FileHandler|pickle|socket|requests\.|signal\.|setattr\(|torch\.backends|while True"
)
_SPEAKING = re.compile(r"optim|param|weight_decay")
_OWN = 3  # the rank of the subject's own code
_MOST = 24  # functions that are called
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A method or an attribute of a part of the module, or a function that takes it, and its definition.

    `call` asks for it on the part at `path` of a module; `text` is its source. One that is only `of_a_part` by its name
    is asked for what it takes, and what it leaves out is none of its faults.
    """

    path: str
    name: str
    line: Line
    text: str
    call: Callable[[nn.Module], Any]
    is_method: bool = True
    is_attribute: bool = False
    of_a_part: bool = False

    @property
    def names(self) -> set[str]:
        """What its source calls or reads by name."""
        tree = attempt(lambda: ast.parse(self.text))
        return set() if isinstance(tree, Caught) else {last_name(node) for node in ast.walk(tree)}


def builders(root: nn.Module, packages: tuple[str, ...]) -> list[Builder]:
    """Those of the subject's own, of each class of module once, first methods, then functions."""
    frames = FrameFilter(packages)
    found: list[Builder] = []
    kinds: dict[type, str] = {}
    for path, part in root.named_modules():
        if kinds.setdefault(type(part), path) == path:
            found += [*_methods(path, part, frames), *_attributes(path, part)]
    found += _functions(root, packages, frames)
    return found[:_MOST]


def _methods(path: str, part: nn.Module, frames: FrameFilter) -> Iterator[Builder]:
    kind = type(part)
    for name in dir(kind):
        is_builder = _NAME.fullmatch(name) is not None
        if hasattr(nn.Module, name) or not (is_builder or _OF_A_PART.fullmatch(name)):
            continue
        held = inspect.getattr_static(kind, name)
        is_property = isinstance(held, property)
        function: Any = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
        function = inspect.unwrap(function) if callable(function) else None
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or frames.rank_of(code) != _OWN or (is_property and not is_builder):
            continue
        text = source_of(function)
        if _is_harmless(function, text):
            yield Builder(
                path=path,
                name=name,
                line=Line(file=code.co_filename, line=line_of(code), function=name),
                text=text,
                call=_asking_method(name, is_property=is_property),
                of_a_part=not is_builder,
            )


def _asking_method(name: str, *, is_property: bool) -> Callable[[nn.Module], Any]:
    def call(holder: nn.Module) -> Any:
        held = getattr(holder, name)
        return held if is_property else held(**_arguments(held, holder))

    return call


def _attributes(path: str, part: nn.Module) -> Iterator[Builder]:
    """Optimizers that the part itself holds."""
    for name, value in vars(part).items():
        several = value if isinstance(value, (list, tuple)) else [value]
        line = line_that_makes(part, name) if several and all(map(is_optimizer, several)) else None
        if line is not None:
            yield Builder(
                path=path,
                name=name,
                line=line,
                text=source_of(type(part).__init__),
                call=lambda holder, name=name: vars(holder)[name],
                is_attribute=True,
            )


def _functions(root: nn.Module, packages: tuple[str, ...], frames: FrameFilter) -> Iterator[Builder]:
    """Those of modules of the subject's packages that are loaded, and that take a model first."""
    seen: set[CodeType] = set()
    for module_name, file in sorted(loaded_files(packages).items()):
        module = sys.modules.get(module_name)
        if module is None or frames.rank(file) != _OWN or not _SPEAKING.search(text_of(Path(file))):
            continue
        for name, function in sorted(vars(module).copy().items()):
            code = getattr(function, "__code__", None) if inspect.isfunction(function) else None
            if code is None or code in seen or not _NAME.fullmatch(name) or frames.rank_of(code) != _OWN:
                continue
            seen.add(code)
            if _takes(function, root) and _is_harmless(function, text := source_of(function)):
                yield Builder(
                    path="",
                    name=name,
                    line=Line(file=code.co_filename, line=line_of(code), function=name),
                    text=text,
                    call=_asking_function(function),
                    is_method=False,
                )


def _asking_function(function: Callable[..., Any]) -> Callable[[nn.Module], Any]:
    return lambda root: function(**_arguments(function, root))


def _takes(function: Callable[..., Any], root: nn.Module) -> bool:
    """Whether its first argument is a model, of a class that the module is of where it says which."""
    parameters = attempt(lambda: list(inspect.signature(function).parameters.values()))
    if isinstance(parameters, Caught) or not parameters or parameters[0].name not in MODELS:
        return False
    wanted = parameters[0].annotation
    if wanted is inspect.Parameter.empty:
        return True
    if isinstance(wanted, type):
        return isinstance(root, wanted)
    names = {each.__name__ for each in type(root).__mro__}
    return bool(names.intersection(re.findall(r"\w+", str(wanted))))


def _arguments(function: Callable[..., Any], holder: nn.Module) -> dict[str, Any]:
    """A value for each argument that has none. Raises LookupError where nothing is known of one."""
    needed = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind not in _VARIABLE
    ]
    return {name: value_of(name, holder) for name in needed}


def _is_harmless(function: Callable[..., Any], text: str) -> bool:
    """Whether its source can be read, and by it reaches for nothing outside."""
    if not text or inspect.iscoroutinefunction(function):
        return False
    return not any(_REACHING_OUT.search(each) for each in sources_within_call(function))
