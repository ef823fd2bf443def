"""JSON held against a schema: the words of JSON Schema that ours uses, and one sentence for what is not as it says."""

import difflib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsa_doctor.core.text import escaped

_TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {  # a reader's word for it, and what Python reads it as
    "string": ("text", (str,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "null": ("null", (type(None),)),
    "array": ("a list", (list,)),
    "object": ("an object", (dict,)),
}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONGEST_VALUE = 40
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Conformity:
    """Compares with `schema`, and with its `$defs` where it refers to them."""

    schema: Schema

    def objections(self, value: Any) -> Iterator[str]:
        """What is not as the schema says, place first, in the order of the document."""
        return self._objections(value, self.schema, "")

    def read(self, value: Any) -> Any:
        """A value without objections, with numbers for the strings that stand for them, and text that can be written.

        Where text and numbers may both stand, `NaN` is taken for the number.
        """
        return self._read(value, self.schema)

    def _read(self, value: Any, schema: Schema) -> Any:
        schema = self._followed(schema)
        while "anyOf" in schema:
            schema = self._followed(self._fitting(value, schema))
        if isinstance(value, dict):
            known, others = schema.get("properties", {}), schema["additionalProperties"]
            return {_writable(key): self._read(item, known.get(key, others)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._read(item, schema["items"]) for item in value]
        if not isinstance(value, str):
            return value
        is_number = value in _NOT_FINITE and ("number" in schema.get("type", ()) or value in schema.get("enum", ()))
        return _NOT_FINITE[value] if is_number else _writable(value)

    def _objections(self, value: Any, schema: Schema, at: str) -> Iterator[str]:
        schema = self._followed(schema)
        if expected := self._expected_instead(value, schema):
            yield f"{at or 'the document'} must be {_either(expected)}, got {_shown(value)}"
        elif "anyOf" in schema:
            yield from self._objections(value, self._fitting(value, schema), at)
        elif isinstance(value, dict):
            yield from self._objections_to_keys(value, schema, at)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._objections(item, schema["items"], f"{at}[{index}]")

    def _objections_to_keys(self, value: Mapping[str, Any], schema: Schema, at: str) -> Iterator[str]:
        known, others = schema.get("properties", {}), schema["additionalProperties"]
        for key in schema.get("required", ()):
            if key not in value:
                yield f"{at or 'the document'} must have {key!r}"
        for key, item in value.items():
            place = f"{at}.{escaped(key)[:_LONGEST_VALUE]}".removeprefix(".")
            if key in known or others is not False:
                yield from self._objections(item, known.get(key, others), place)
            else:
                near = difflib.get_close_matches(key[:_LONGEST_VALUE], known, n=1)
                hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"
                yield f"{place} is not known: {hint}"

    def _expected_instead(self, value: Any, schema: Schema) -> list[str]:
        """What may stand here when a value of this kind may not; nothing when it may."""
        schema = self._followed(schema)
        if "anyOf" in schema:
            refused = [self._expected_instead(value, option) for option in schema["anyOf"]]
            return [word for words in refused for word in words] if all(refused) else []
        if "const" in schema or "enum" in schema:
            allowed = schema["enum"] if "enum" in schema else [schema["const"]]
            is_allowed = any(type(value) is type(one) and value == one for one in allowed)
            return [] if is_allowed else [json.dumps(one) for one in allowed]
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        return [] if any(_is_a(value, kind) for kind in kinds) else [_TYPES[kind][0] for kind in kinds]

    def _fitting(self, value: Any, schema: Schema) -> Schema:
        return next(option for option in schema["anyOf"] if not self._expected_instead(value, option))

    def _followed(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self.schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        return schema


def _is_a(value: Any, kind: str) -> bool:
    is_truth = isinstance(value, bool)
    return is_truth if kind == "boolean" else isinstance(value, _TYPES[kind][1]) and not is_truth


def _writable(text: str) -> str:
    """The text with a question mark for each half of a character."""
    return text.encode(errors="replace").decode()


def _either(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(value: Any) -> str:
    """A value as a sentence can hold it."""
    if isinstance(value, (list, dict)):
        return f"{_TYPES['array' if isinstance(value, list) else 'object'][0]} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
