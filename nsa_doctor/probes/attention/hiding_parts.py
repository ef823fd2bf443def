"""Whether a part of a module leaves padding out by what it is given: a sign of what the module's argument means."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.internal import tree_leaves, tree_map

_CLOSE = 1e-6
_Given = tuple[tuple[Any, ...], dict[str, Any]]


def a_part_hides(module: nn.Module, under: Callable[[], object], without: Callable[[], object], is_own: Tensor) -> bool:
    """Whether a part, given what it is `under` a mask, answers the same whatever the tokens hold that are not `is_own`.

    Given what it is `without` one, it must not. `is_own` [B, S] says which tokens are no padding; both calls are made
    with the same rows. A part that answers once for a row may take only some of its tokens, and tells nothing.
    """
    masked, plain = (_given_to_parts(module, call) for call in (under, without))
    return any(
        attempt(lambda part=part: _is_moved(part, plain[part], is_own)) is True
        and attempt(lambda part=part: _is_moved(part, masked[part], is_own)) is False
        for part in masked
        if part in plain
    )


def _given_to_parts(module: nn.Module, call: Callable[[], object]) -> dict[nn.Module, _Given]:
    """What the first call of each part is given."""
    found: dict[nn.Module, _Given] = {}

    def see(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if part not in found:
            found[part] = _copied(args), _copied(kwargs)

    parts = [part for part in module.modules() if part is not module and next(part.children(), None) is not None]
    handles = [part.register_forward_pre_hook(see, with_kwargs=True) for part in parts]
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _is_moved(part: nn.Module, given: _Given, is_own: Tensor) -> bool:
    """Whether what it answers for tokens of a row's own is other for other padding."""
    first, second = (_answers(part, given, is_own, each) for each in (0.0, 1.0))
    if not first or len(first) != len(second):
        raise ValueError("nothing that it answers is of tokens")
    return not all(_are_alike(*pair) for pair in zip(first, second, strict=True))


def _answers(part: nn.Module, given: _Given, is_own: Tensor, more: float) -> list[Tensor]:
    def filled(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        if not _is_of_tokens(each, is_own) or each.ndim < 3:
            return each.clone()
        return torch.where(is_own.view(*is_own.shape, *[1] * (each.ndim - 2)), each, each.flip(-1) * 0.5 + more)

    args, kwargs = tree_map(filled, given[0]), tree_map(filled, given[1])
    answer = [each for each in tree_leaves(part(*args, **kwargs)) if isinstance(each, Tensor)]
    return [each[is_own] for each in answer if _is_of_tokens(each, is_own)]


def _is_of_tokens(each: Tensor, is_own: Tensor) -> bool:
    return each.is_floating_point() and each.shape[:2] == is_own.shape


def _are_alike(first: Tensor, second: Tensor) -> bool:
    is_whole = first.shape == second.shape and bool(first.isfinite().all())
    return is_whole and bool((first - second).abs().max() <= _CLOSE * float(first.abs().max()))


def _copied(given: Any) -> Any:
    return tree_map(lambda each: each.clone() if isinstance(each, Tensor) else each, given)
