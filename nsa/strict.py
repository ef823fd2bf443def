"""Strict models: unknown keys and wrong types are one sentence that starts with the key and shows the value."""

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be printable text")
    return value


Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_printable)]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value seen and what is allowed."""


class Strict(BaseModel):
    """A frozen model that takes keywords of the right type alone; raises ConfigError with one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(error, type(self))) from None


def nearest(key: str, allowed: Iterable[str]) -> str:
    """What a misspelt key may have meant, else all that is allowed."""
    near = difflib.get_close_matches(key[:100], allowed, n=1)
    return f"did you mean {near[0]}" if near else f"allowed are {', '.join(sorted(allowed))}"


def plain(text: str) -> str:
    """Text as it is when it is harmless on a terminal, else escaped and cut."""
    return text if text.isprintable() and len(text) <= 200 else reprlib.repr(text)


def shown(value: object) -> str:
    """A value as an error shows it: short, with its type."""
    if value is None:
        return "nothing"
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        text = "a number of thousands of digits"
    return f"{text} ({type(value).__name__})"


def _sentence(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first problem as one sentence that starts with the key."""
    problems = error.errors(include_url=False)
    # An unknown key leads: misspelt, it is why another one is missing.
    problem = next((entry for entry in problems if entry["type"] == "extra_forbidden"), problems[0])
    key = ".".join(plain(str(part)) for part in problem["loc"])
    match problem["type"]:
        case "value_error" if not key or isinstance(problem["ctx"]["error"], ConfigError):
            return f"{key}{'.' if key else ''}{problem['ctx']['error']}"
        case "extra_forbidden":
            return f"{key} is unknown (value {shown(problem['input'])}): {nearest(key, kind.model_fields)}"
        case "missing":
            return f"{key} is missing: {kind.model_fields[key].description}"
    rule = re.sub("^(Input should|String should|Tuple should|Value error, must)", "must", problem["msg"])
    rule = rule.replace("valid tuple", "list").replace(" after validation", "")
    return f"{key} {rule}, got {shown(problem['input'])}"
