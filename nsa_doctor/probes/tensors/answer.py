"""What a subject's call returned: the expected tensor, and every other tensor beside it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

OUTPUT_NAMES = ("logits", "last_hidden_state", "output", "hidden_states")
_DEEPEST = 8


def split_answer(answer: Any, *fits: Callable[[Tensor], bool]) -> tuple[Any, dict[str, Tensor]]:
    """The first tensor that fits, fields that carry logits or states first, and all other floating-point tensors.

    What fits one of them goes before what fits a later one. When none fits, the most plausible tensor, or the answer
    itself when it holds none.
    """
    if isinstance(answer, Tensor):
        return answer, {}
    found = dict(_tensors(answer, "", _DEEPEST))
    named = [_field(answer, name) for name in OUTPUT_NAMES]
    candidates = [value for value in (*named, *found.values()) if isinstance(value, Tensor)]
    output = next((value for each in fits for value in candidates if each(value)), None)
    if output is None:
        output = max(candidates, key=lambda value: min(value.ndim, 3), default=answer)
    others = {
        path: value
        for path, value in found.items()
        if value is not output and (value.is_floating_point() or value.is_complex())
    }
    return output, others


def floating_parts(answer: Any) -> dict[str, Tensor]:
    """Every tensor of floating-point numbers in an answer, by the way to it."""
    return {
        path: part for path, part in _tensors(answer, "", _DEEPEST) if part.is_floating_point() or part.is_complex()
    }


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)


def _tensors(answer: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors in nested tuples, lists, mappings and dataclasses, each with the way to it."""
    if isinstance(answer, Tensor):
        yield path, answer
        return
    parts: list[tuple[str, Any]] = []
    if depth == 0:
        return
    if isinstance(answer, Mapping):
        parts = [(f"{path}[{key!r}]", value) for key, value in answer.items()]
    elif isinstance(answer, (tuple, list)):
        parts = [(f"{path}[{index}]", value) for index, value in enumerate(answer)]
    elif is_dataclass(answer) and not isinstance(answer, type):
        parts = [(f"{path}.{field.name}", getattr(answer, field.name, None)) for field in fields(answer)]
    for way, value in parts:
        yield from _tensors(value, way, depth - 1)
