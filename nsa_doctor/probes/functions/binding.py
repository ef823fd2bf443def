"""Which arguments a function takes, and those of a call that it can be given."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.function_spec import FunctionSpec
from nsa_doctor.subject.contract import SubjectUnusableError
from nsa_doctor.subject.function import Keyword


@dataclass(frozen=True)
class Parameters:
    """Names that a function takes by keyword with their defaults; `takes_all` where it says no names or takes any."""

    defaults: Mapping[str, Any]
    takes_all: bool

    def name_of(self, keyword: Keyword) -> str | None:
        """The first of an argument's names that the function has."""
        named = next((name for name in keyword.names if name in self.defaults), None)
        return keyword.names[0] if named is None and self.takes_all and keyword.need != "default" else named


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """What its signature says; a builtin without one is taken to have every argument of its convention."""
    signature = attempt(lambda: inspect.signature(function))
    if isinstance(signature, Caught):
        return Parameters({}, takes_all=True)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {name: each.default for name, each in signature.parameters.items() if each.kind in kinds}
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    return Parameters(named, takes_all)


def without_arguments(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, as one that does not take those names."""

    @wraps(function)
    def called(*positional: Any, **keywords: Any) -> Any:
        return function(*positional, **keywords)

    kept = [each for name, each in inspect.signature(function).parameters.items() if name not in names]
    vars(called)["__signature__"] = inspect.Signature(kept)
    return called


def bound(function: Callable[..., Any], keywords: Sequence[Keyword], spec: FunctionSpec, name: str) -> dict[str, Any]:
    """The keywords of a call; SubjectUnusableError names one that the spec needs and the function does not take."""
    parameters, taken = parameters_of(function), {}
    for keyword in keywords:
        found = parameters.name_of(keyword)
        if found is None:
            if keyword.need == "must" and not spec.is_built_in:
                raise SubjectUnusableError(_missing(name, keyword, parameters))
            continue
        if keyword.need != "default" or not _is_default(parameters.defaults.get(found), keyword.value):
            taken[found] = keyword.value
    return taken


def is_given_all(function: Callable[..., Any], keywords: Sequence[Keyword]) -> bool:
    """Whether the function names or takes each argument that a call cannot do without."""
    parameters = parameters_of(function)
    return all(parameters.name_of(each) is not None for each in keywords if each.need == "must")


def check_fits(function: Callable[..., Any], positional: int, convention: str, name: str) -> None:
    """Raise SubjectUnusableError for a function that cannot be called with so many arguments by position."""
    signature = attempt(lambda: inspect.signature(function))
    if isinstance(signature, Caught):
        return
    refused = attempt(lambda: signature.bind_partial(*range(positional)))
    if isinstance(refused, Caught):
        raise SubjectUnusableError(
            f"{name} does not fit --like {convention}, which calls it with {positional} arguments by position: "
            f"{refused.error}; its signature is {signature}"
        )


def check_complete(
    function: Callable[..., Any], positional: int, keywords: Mapping[str, Any], like: str, name: str
) -> None:
    """Raise SubjectUnusableError for an argument without a default that the convention does not give."""
    signature = attempt(lambda: inspect.signature(function))
    if isinstance(signature, Caught):
        return
    refused = attempt(lambda: signature.bind(*range(positional), **keywords))
    if isinstance(refused, Caught):
        raise SubjectUnusableError(
            f"{name} does not fit --like {like}: {refused.error}, which the convention does not give by that name; "
            f"its signature is {signature}"
        )


def _missing(name: str, keyword: Keyword, parameters: Parameters) -> str:
    others = f" (nor {', '.join(keyword.names[1:])})" if keyword.names[1:] else ""
    has = ", ".join(parameters.defaults) or "none"
    return (
        f"{name} takes no argument {keyword.names[0]}{others}, which {keyword.word} in --spec needs; "
        f"it takes {has}; if it does that by itself, add builtin to --spec"
    )


def _is_default(default: Any, value: Any) -> bool:
    return default is inspect.Parameter.empty or default is value or bool(default == value)
