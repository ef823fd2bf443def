"""Finds out what can be done with a cache beside decoding: choose rows, remove last tokens, copy it, or make it as new.

By the names of methods, of the cache, of each part of a list of them, or of the module. One is taken where choosing
every row, removing nothing, or a copy leaves the next step as it is.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.reset_discovery import with_resets
from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_PROMPT, _ROWS = 4, 2
_REORDERING = (
    *("reorder_cache", "_reorder_cache", "reorder", "reorder_", "batch_select_indices", "select_rows", "select_batch"),
    *("reorder_state", "reorder_states", "reorder_batch", "reorder_rows", "reorder_beams", "select_beams", "reindex"),
    *("index_select", "gather_rows", "beam_reorder", "permute_batch", "keep_rows", "reorder_kv", "reorder_kv_cache"),
    *("select", "select_", "gather", "gather_beams", "permute", "pick", "pick_rows", "choose", "choose_rows"),
)
_CROPPING = ("crop", "crop_", "crop_cache", "crop_to", "truncate_to", "rollback_to", "rewind_to")  # to so many tokens
_REMOVING = ("rollback", "rewind")  # so many tokens
_COPYING = (
    *("fork", "clone", "copy", "deep_copy", "deepcopy", "duplicate", "fork_cache", "clone_cache", "copy_cache"),
    *("fork_state", "clone_state", "copy_state"),
)
Changed = Callable[..., Any]


def with_cache_methods(subject: Subject, module: nn.Module) -> Subject:
    """The subject with the first method that reorders its cache, crops it, copies it and resets it, where there are."""
    if subject.prefill is None or subject.step is None:
        return subject
    cache = attempt(lambda: _prompt(subject)[2])
    subject = _offering(subject, "reorder", _reorderings(cache, module))
    subject = _offering(subject, "crop", _croppings(cache, module))
    subject = _offering(subject, "fork", _copyings(cache, module))
    return with_resets(subject, module, cache)


def _offering(subject: Subject, seam: str, ways: Iterable[tuple[str, Changed]]) -> Subject:
    if subject.offers(seam):
        return subject
    for words, change in ways:
        if attempt(lambda change=change: _keeps(subject, seam, change)) is True:
            note = f"its cache is changed by {words}, which was found by its name"
            return replace(subject, **{seam: change}, notes=(*subject.notes, note))  # type: ignore[arg-type]
    return subject


def _reorderings(cache: Any, module: nn.Module) -> Iterator[tuple[str, Changed]]:
    for words, method, call in _methods(cache, module, _REORDERING):
        yield words, wraps(method)(lambda module, cache, rows, call=call: call(module, cache, rows))


def _croppings(cache: Any, module: nn.Module) -> Iterator[tuple[str, Changed]]:
    for words, method, call in _methods(cache, module, _CROPPING):
        yield (
            words,
            wraps(method)(lambda module, cache, num_kept, num_removed, call=call: call(module, cache, num_kept)),
        )
    for words, method, call in _methods(cache, module, _REMOVING):
        change = lambda module, cache, num_kept, num_removed, call=call: call(module, cache, num_removed)  # noqa: E731
        yield words, wraps(method)(change)


def _copyings(cache: Any, module: nn.Module) -> Iterator[tuple[str, Changed]]:
    for words, method, call in _methods(cache, module, _COPYING, 0):

        def copied(module: nn.Module, cache: Any, call: Changed = call) -> Any:
            return call(module, cache)

        yield words, wraps(method)(copied)


def _methods(
    cache: Any, module: nn.Module, names: tuple[str, ...], number: int = 1
) -> Iterator[tuple[str, Any, Changed]]:
    """(words, the method, how it is called with the module, a cache and so many arguments) of each that is there."""
    parts = list(cache) if isinstance(cache, (list, tuple)) else []
    for name in names:
        method = getattr(cache, name, None)
        if _takes(method, number):
            yield f"its method {name}", method, lambda module, cache, *given, name=name: _changed(cache, name, *given)
        elif parts and all(_takes(getattr(each, name, None), number) for each in parts):

            def each_part(module: nn.Module, cache: Any, *given: Any, name: str = name) -> Any:
                return type(cache)([_changed(each, name, *given) for each in cache])

            yield f"the method {name} of its parts", getattr(parts[0], name), each_part
        method = getattr(module, name, None)
        if _takes(method, 1 + number):

            def of_module(module: nn.Module, cache: Any, *given: Any, name: str = name) -> Any:
                changed = getattr(module, name)(cache, *given)
                return cache if changed is None else changed

            yield f"the module's {name}", method, of_module


def _changed(cache: Any, name: str, *given: Any) -> Any:
    changed = getattr(cache, name)(*given)
    return cache if changed is None else changed


def _takes(method: Any, number: int) -> bool:
    """Whether it is the subject's own and can be called with so many arguments."""
    if not inspect.isroutine(method) or not hasattr(inspect.unwrap(method), "__code__"):
        return False
    try:
        inspect.signature(method).bind(*range(number))
    except (TypeError, ValueError):
        return False
    return True


def _prompt(subject: Subject) -> tuple[BuiltModule, Tensor, Any]:
    assert subject.prefill is not None
    sp = built(subject)
    x = sp.input(_PROMPT + 1, _ROWS)
    with torch.no_grad():
        return sp, x, subject.prefill(sp.module, x[:, :_PROMPT].clone())[1]


def _keeps(subject: Subject, seam: str, change: Changed) -> bool:
    """Whether the change that changes nothing leaves the next step as it is."""
    assert subject.step is not None
    outputs = []
    for is_changed in (False, True):
        sp, x, cache = _prompt(subject)
        givens = {"reorder": (torch.arange(_ROWS, device=x.device),), "crop": (_PROMPT, 0), "fork": ()}
        with torch.no_grad():
            changed = change(sp.module, cache, *givens[seam]) if is_changed else cache
            if seam == "fork" and is_changed and changed is cache:
                return False  # as a method that returns nothing, and copies something else
            cache = changed
            outputs.append(subject.step(sp.module, x[:, _PROMPT:].clone(), cache)[0].clone())
    return torch.equal(*outputs)
