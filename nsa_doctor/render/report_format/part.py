"""What the models of a report are made of: a strict object, numbers that need not be finite, and what may be null."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

T = TypeVar("T")
NotFinite = Literal["NaN", "Infinity", "-Infinity"]
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONGEST_KEY = 40
_EXPECTED = {  # an error of pydantic, and a reader's word for what should be there
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


class OtherKindError(ValueError):
    """A value is none of what `words` say."""

    def __init__(self, *words: str) -> None:
        super().__init__(*words)
        self.words = words


class UnknownKeyError(ValueError):
    """An object has a key that its model does not know."""

    def __init__(self, key: str, known: Sequence[str]) -> None:
        super().__init__(key)
        near = difflib.get_close_matches(key[:_LONGEST_KEY], known, n=1)
        self.key = key
        self.hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"


def expected(problem: Mapping[str, Any]) -> Sequence[str]:
    """What may stand where pydantic found this error, in a reader's words."""
    context = problem.get("ctx", {})
    if isinstance(context.get("error"), OtherKindError):
        return context["error"].words
    named = context.get("expected", "").replace("'", '"')
    return [named or _EXPECTED[problem["type"]]]


def _one_of(*words: str) -> WrapValidator:
    """What the type allows, as it stands; numbers for the strings that stand for them."""

    def read(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            handler(value)
        except ValidationError:
            raise OtherKindError(*words) from None
        return _with_numbers(value)

    return WrapValidator(read)


def _or_null(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        is_of_the_kind = problem["loc"] or isinstance(problem.get("ctx", {}).get("error"), UnknownKeyError)
        if is_of_the_kind:
            raise
        raise OtherKindError(*expected(problem), "null") from None


def _entry_by_entry(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """The mapping; the first wrong entry ends it, as FailFast does for lists: a file may hold millions of them."""
    if not isinstance(value, dict):
        return handler(value)
    return {key: handler({key: item})[key] for key, item in value.items()}


def _with_numbers(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value


# JSON has no words for numbers that are not finite: three strings stand for them. Where text may stand too, they are
# taken for the number.
Number = Annotated[float | NotFinite, _one_of("a number", '"NaN"', '"Infinity"', '"-Infinity"')]
Scalar = Annotated[str | float | bool | None, _one_of("text", "a number", "true or false", "null")]
Plain = Annotated[JsonValue, AfterValidator(_with_numbers)]
Maybe = Annotated[T | None, WrapValidator(_or_null)]
Listed = Annotated[list[T], FailFast()]
Named = Annotated[dict[str, T], WrapValidator(_entry_by_entry)]


def optional(description: str = "") -> Any:
    """A field that need not be there; nothing stands for it where it is absent."""
    return Field(default=None, description=description or None)


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    _record: ClassVar[Any] = None  # the dataclass that it is read as; a mapping, in its own order, where there is none

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, given: Any, handler: Callable[[Any], Any]) -> Any:
        if cls.model_config["extra"] == "forbid" and isinstance(given, dict):
            unknown = next((key for key in given if key not in cls.model_fields), None)
            if unknown is not None:
                raise UnknownKeyError(unknown, list(cls.model_fields))
        part = handler(given)
        values = {**vars(part), **(part.model_extra or {})}
        if cls._record is None:
            return {key: values[key] for key in given}
        own = (each.name for each in fields(cls._record) if each.name in given)
        return cls._record(**{name: _frozen(values[name]) for name in own})


class OpenPart(Part):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Plain]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
