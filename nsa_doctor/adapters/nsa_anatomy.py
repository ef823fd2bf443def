"""The inner tensors of an NSAttention layer: what it hands to its operators is seen by standing between the two."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nsa.nn import NSAttention
from nsa.nn import attention as layer
from nsa.ops.geometry import Geometry
from nsa.ops.select import reference, vectorized

_OPERANDS = ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates")


def anatomy(module: nn.Module, x: Tensor) -> Mapping[str, Tensor]:
    """What the layer hands to `nsa_attention` and what comes back, in one call."""
    assert isinstance(module, NSAttention)
    with _overheard(layer, "nsa_attention") as calls:
        module.branches(x)
    (operands, output), *_ = calls
    given = output._asdict()
    return {**dict(zip(_OPERANDS, operands, strict=False)), **given, "gated": given["out"]}


def choose(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The slots chosen in one call, and the importance they were chosen by."""
    assert isinstance(module, NSAttention)
    operator = reference if module.impl == "reference" else vectorized
    with _overheard(operator, "choose_slots") as calls:
        slots = module.branches(x).slots
    num_blocks = -(-x.shape[1] // module.config.l_sel)
    scored = [(operands[2], operands[0]) for operands, _ in calls]
    return slots, _assembled(scored, (*slots.shape[:3], num_blocks), x)


def select(importance: Tensor, first_query: int, geometry: Geometry) -> Tensor:
    """The choice alone."""
    return vectorized.choose_slots(importance, geometry, first_query)


def attend(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry) -> Tensor:
    """Selected attention alone."""
    return vectorized.selected_attention(q, k, v, slots, geometry)


def _assembled(scored: list[tuple[int, Tensor]], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Importance [B, S, G, J] from tiles of queries and rows; zero for queries that no tile scored."""
    whole = torch.zeros(shape, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    filled: dict[int, int] = {}
    for first, part in scored:
        row = filled.get(first, 0)
        filled[first] = row + part.shape[0]
        whole[row : row + part.shape[0], first : first + part.shape[1]] = pad(part, (0, shape[-1] - part.shape[-1]))
    return whole


@contextmanager
def _overheard(owner: ModuleType, name: str) -> Iterator[list[tuple[tuple[Any, ...], Any]]]:
    """Note (arguments, result) of every call of a module's function while the region lasts."""
    function: Callable[..., Any] = getattr(owner, name)
    calls: list[tuple[tuple[Any, ...], Any]] = []

    def noting(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        calls.append((arguments, result))
        return result

    setattr(owner, name, noting)
    try:
        yield calls
    finally:
        setattr(owner, name, function)
