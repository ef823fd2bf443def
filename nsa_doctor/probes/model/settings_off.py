"""Settings that are off, as the source of a module reads them: what they turn on is run by no call."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.probes.hooks.attribute_lines import MAKING, is_of_self, methods_of

_ABSENT = object()
_OWN = 3  # rank of the subject's own code


@dataclass(frozen=True)
class SettingOff:
    """An argument of a constructor that is None or False, and the first line that asks whether it is."""

    name: str
    value: bool | None
    line: Line


def settings_off(root: nn.Module, frames: FrameFilter) -> Iterator[SettingOff]:
    """Those of the subject's own modules that every instance of a class has off, in the order of modules."""
    kinds: dict[type[nn.Module], list[nn.Module]] = {}
    for module in root.modules():
        kinds.setdefault(type(module), []).append(module)
    for kind, modules in kinds.items():
        arguments = attempt(lambda kind=kind: list(inspect.signature(kind.__init__).parameters))
        names = [] if isinstance(arguments, Caught) else arguments[1:]
        kept = {name: _kept(modules, name) for name in names}
        off = {name: value for name, value in kept.items() if value is None or value is False}
        asking = list(_asking(modules[0])) if off else []
        for name, value in off.items():
            line = next((line for test, line in asking if _wants(test, name) and frames.rank(line.file) == _OWN), None)
            if line is not None:
                yield SettingOff(name, value, line)


def _kept(modules: list[nn.Module], name: str) -> Any:
    """What all of them keep by that name; something else where they keep several things, a tensor or a part."""
    values = [vars(module).get(name, _ABSENT) for module in modules]
    return values[0] if all(value is values[0] for value in values) else _ABSENT


def _asking(module: nn.Module) -> Iterator[tuple[ast.expr, Line]]:
    """What its methods ask before they do something, and where."""
    for file, method in methods_of(module):
        for node in ast.walk(method):
            if isinstance(node, (ast.If, ast.IfExp)) and method.name not in MAKING:
                yield node.test, Line(file=file, line=node.lineno, function=method.name)


def _wants(test: ast.expr, name: str) -> bool:
    """Whether it is false where the attribute is None or False: `self.x`, `self.x is not None`, `self.x and …`."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(_wants(each, name) for each in values)
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return _wants(left, name)
        case ast.Attribute():
            return is_of_self(test, name)
    return False
