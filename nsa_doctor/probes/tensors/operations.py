"""What an operator's schema and name tell about it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nsa_doctor.probes.internal import overload_of, schema_of

UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
DRAWING = frozenset({"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_"})
OVERWRITING = DRAWING | {"copy_", "fill_", "zero_"}


def reads_masks(operation: str) -> bool:
    """Whether -inf is a legitimate input that means "nothing here"."""
    return "softmax" in operation or "attention" in operation or operation in ("exp", "logsumexp")


def operation_name(func: Any) -> str:
    """The operator's plain name: aten::_softmax is softmax."""
    schema = schema_of(func)
    return str(func if schema is None else schema.name).rpartition("::")[2].lstrip("_")


def overwrites(func: Any) -> bool:
    """Whether the operation writes its result without reading what was there."""
    return operation_name(func) in OVERWRITING or overload_of(func).endswith("out")


def written_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments an operation writes into, as its schema declares."""
    schema = schema_of(func)
    if schema is None or not schema.is_mutable:
        return []
    found = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[position] if position < len(args) else kwargs.get(argument.name))
    return found


def tensors_in(*values: object) -> list[Tensor]:
    """The tensors among what an operation takes or returns, in order: it nests them in sequences and mappings alone.

    For every operation of a pass: torch's own walk, which knows containers of users too, takes many times as long.
    """
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_in(*value)
        elif isinstance(value, Mapping):
            found += tensors_in(*value.values())
    return found
