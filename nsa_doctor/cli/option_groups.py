"""Options that several commands have together: said once, taken as one value."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from nsa_doctor.cli import option_types as given


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """Whom to examine: the built-in layer of a configuration, or a subject of the user's, with its training step."""

    config: given.Config = None
    subject: given.Subject = None
    input_kind: given.Input = None
    width: given.Width = None
    spec: given.Spec = None
    train: given.Train = None
    size: given.Size = None

    def words(self) -> dict[str, Any]:
        """By the names that a command line gives them, as `reproduce` takes them."""
        return {"input" if name == "input_kind" else name: value for name, value in vars(self).items()}


@dataclass(frozen=True, kw_only=True)
class FunctionOptions:
    """How a function is called, and what it is compared with."""

    like: given.Like = None
    reference: given.Reference = None
    inputs: given.Inputs = None

    def words(self) -> dict[str, Any]:
        """By the names that a command line gives them."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """How to report."""

    form: given.Format = None
    output: given.Output = None
    quiet: given.QuietReport = False
    traceback: given.Traceback = False


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """The command as typer reads it: a parameter that is a group stands as the group's options, in their order."""
    signature = inspect.signature(command)
    groups = {name: each.annotation for name, each in signature.parameters.items() if each.annotation in _GROUPS}

    def call(**words: Any) -> int:
        made = {name: _taken(group, words) for name, group in groups.items()}
        return command(**words, **made)

    parameters = list(_options(signature))
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def _taken(group: type[Any], words: dict[str, Any]) -> Any:
    """One group, of those options among the words that are its own; the rest stays."""
    return group(**{each.name: words.pop(each.name) for each in fields(group)})


def _options(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    for parameter in signature.parameters.values():
        if parameter.annotation not in _GROUPS:
            yield parameter
            continue
        types = get_type_hints(parameter.annotation, include_extras=True)
        for each in fields(parameter.annotation):
            yield parameter.replace(name=each.name, annotation=types[each.name], default=each.default)


_GROUPS = (SubjectOptions, FunctionOptions, ReportOptions)
