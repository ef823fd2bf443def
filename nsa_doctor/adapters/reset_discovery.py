"""Finds out how a cache is made as new, all of it or some of its rows, by the name of a method.

One is taken where a prompt behind it is answered as in a new cache: after other tokens, or, where it brings some of
the cache back to what a new one holds, before any, or always in one other way.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.decoding_starts import by_class, by_making, names_a_cache
from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.attention.decoding import ReadByTokens
from nsa_doctor.probes.attention.reset_cache import ReadFrom, Reset, Start, Step, single
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.state_fields import Field, fields_of, kept
from nsa_doctor.subject.contract import Subject

_NAMES = (
    *("reset", "reset_", "reset_cache", "reset_caches", "reset_kv", "reset_kv_cache", "reset_state", "reset_states"),
    *("reset_memory", "reset_rows", "reset_batch", "clear", "clear_", "clear_cache", "clear_caches", "clear_kv_cache"),
    *("clear_state", "clear_rows", "empty", "empty_cache", "zero", "zero_", "restart", "start_over", "new_sequence"),
)
_OF_A_PART = ("reset_kv", "reset_kv_cache", "reset_memory", "clear_kv_cache", "zero", "zero_", "empty")
_MASKS = ("mask", "reset_mask", "done", "dones", "finished", "ended", "is_done", "is_new", "is_first", "starts")
_INDICES = (
    *("rows", "row", "row_ids", "row_idx", "idx", "index", "indices", "ids", "batch_idx", "batch_index", "batch_ids"),
    *(
        "batch_indices",
        "slots",
        "slot",
        "slot_ids",
        "lanes",
        "lane",
        "env_ids",
        "which",
        "beams",
        "sequences",
        "i",
        "b",
    ),
)
_PROMPT, _ROWS = 4, 2
_NEAR = {2: 0.02, 4: 1e-4, 8: 1e-8}  # by bytes of a value, of the largest
Changed = Callable[..., Any]


def with_resets(subject: Subject, module: nn.Module, cache: Any) -> Subject:
    """The subject with the first method that makes its cache as new, and the first that does so with rows of it.

    One that does is taken before one that is only named so.
    """
    is_own = lambda method: _is_of(method, subject.packages)  # noqa: E731
    for seam, ways in (("reset", _whole(cache, module, is_own)), ("reset_rows", _by_rows(cache, is_own))):
        tried: list[tuple[bool, str, Reset]] = []
        for words, method, change in ways if not subject.offers(seam) else ():
            tried += [(is_right, words, reset) for is_right, reset in _proven(subject, module, cache, method, change)]
        for _, words, reset in sorted(tried, key=lambda each: not each[0])[:1]:
            of = "its cache is" if seam == "reset" else "rows of its cache are"
            note = f"{of} made as new by {words}, which was found by its name"
            subject = replace(subject, **{seam: reset}, notes=(*subject.notes, note))  # type: ignore[arg-type]
    return subject


def _whole(cache: Any, module: nn.Module, is_own: Callable[[Any], bool]) -> Iterator[tuple[str, Any, Changed]]:
    """(words, the method, how it is called with the module and a cache) of each that takes no more."""
    parts = list(cache) if isinstance(cache, (list, tuple)) else []
    for name in _NAMES:
        method = _method(cache, name)
        if is_own(method) and _takes(method, 0):
            yield f"its method {name}", method, lambda module, cache, *rows, name=name: _left(cache, name)
        elif parts and all(is_own(each) and _takes(each, 0) for each in (_method(one, name) for one in parts)):

            def each_part(module: nn.Module, cache: Any, *rows: Tensor, name: str = name) -> Any:
                return type(cache)([_left(each, name) for each in cache])

            yield f"the method {name} of its parts", getattr(parts[0], name), each_part
        method = _method(module, name) if not hasattr(nn.Module, name) else None
        if is_own(method) and any(names_a_cache(each) for each in _parameters(method)[:1]) and _takes(method, 1):

            def of_module(module: nn.Module, cache: Any, *rows: Tensor, name: str = name) -> Any:
                left = getattr(module, name)(cache)
                return left if type(left) is type(cache) else cache

            yield f"the module's {name}", method, of_module
        elif is_own(method) and _takes(method, 0):

            def of_held(module: nn.Module, cache: Any, *rows: Tensor, name: str = name) -> Any:
                getattr(module, name)()
                return cache

            yield f"the module's {name}", method, of_held


def _by_rows(cache: Any, is_own: Callable[[Any], bool]) -> Iterator[tuple[str, Any, Changed]]:
    """(words, the method, how it is called with the module, a cache and rows [B] bool), as a mask, numbers, or each."""
    for name in _NAMES:
        method = _method(cache, name)
        named = _parameters(method)[:1]
        if not (named and is_own(method) and named[0] in (*_MASKS, *_INDICES) and _takes(method, 1)):
            continue

        def masked(module: nn.Module, cache: Any, rows: Tensor, name: str = name) -> Any:
            return _left(cache, name, rows)

        def numbered(module: nn.Module, cache: Any, rows: Tensor, name: str = name) -> Any:
            return _left(cache, name, rows.nonzero().flatten())

        def each(module: nn.Module, cache: Any, rows: Tensor, name: str = name) -> Any:
            for row in rows.nonzero().flatten().tolist():
                cache = _left(cache, name, row)
            return cache

        kinds = (masked, numbered, each) if named[0] in _MASKS else (numbered, each, masked)
        for change in kinds:
            yield f"its method {name}({named[0]})", method, change


def _method(owner: Any, name: str) -> Any:
    """What it has by that name, but for a property, which may do anything."""
    is_property = isinstance(inspect.getattr_static(type(owner), name, None), property)
    return None if is_property else getattr(owner, name, None)


def _left(cache: Any, name: str, *given: Any) -> Any:
    left = getattr(cache, name)(*given)
    return left if type(left) is type(cache) else cache


def _parameters(method: Any) -> list[str]:
    signature = attempt(lambda: inspect.signature(method)) if inspect.isroutine(method) else None
    return list(signature.parameters) if isinstance(signature, inspect.Signature) else []


def _is_of(method: Any, packages: Sequence[str]) -> bool:
    """Whether it is a method in Python of those packages: what another library calls so is its own affair."""
    if not inspect.isroutine(method) or not hasattr(inspect.unwrap(method), "__code__"):
        return False
    return (getattr(method, "__module__", None) or "").partition(".")[0] in (*packages, "__main__")


def _takes(method: Any, number: int) -> bool:
    try:
        inspect.signature(method).bind(*range(number))
    except (TypeError, ValueError):
        return False
    return True


def _proven(
    subject: Subject, module: nn.Module, cache: Any, method: Any, change: Changed
) -> Iterator[tuple[bool, Reset]]:
    """The reset, where it is one, and whether what it leaves is read as a new cache is."""
    for into, start in _readings(subject, module, cache):
        reset = Reset(change, method, into, start)
        if attempt(lambda reset=reset: _is_right(subject, reset)) is True:
            yield True, reset
        elif method.__name__ not in _OF_A_PART and attempt(lambda reset=reset: _is_meant(subject, reset)) is True:
            yield False, reset


def _readings(subject: Subject, module: nn.Module, cache: Any) -> Iterator[tuple[Step, Start | None]]:
    """How a prompt may be read into a cache, and what makes a new one, where that is known."""
    read: Any = inspect.unwrap(subject.prefill) if subject.prefill is not None else None
    read = read.prefill if isinstance(read, ReadByTokens) else read
    if isinstance(read, ReadFrom):
        yield read.into, read.start
        return
    into = single(subject)
    for _, start in (*by_making(module), *by_class(module, subject.packages)):
        new = attempt(lambda start=start: start(module, built(subject).input(_PROMPT, _ROWS)))
        is_like = type(new) is type(cache) and not isinstance(new, Tensor)
        if is_like and attempt(lambda start=start: _reads_alike(subject, into, start)) is True:
            yield into, start
            return
    yield into, None


def _reads_alike(subject: Subject, into: Step, start: Start) -> bool:
    """Whether a prompt in a new cache is answered as a prompt is."""
    sp = built(subject)
    x = sp.input(_PROMPT + 1, _ROWS)
    return _is_near(_outputs(sp, x, into, start(sp.module, x)), _right(subject, x))


def _is_right(subject: Subject, reset: Reset) -> bool:
    """Whether a prompt behind it is answered as in a new cache, and is not where nothing is reset."""
    x = built(subject).input(_PROMPT + 1, _ROWS)
    right = _right(subject, x)
    if not _is_near(_behind(subject, reset, x, _PROMPT)[0], right):
        return False
    held = attempt(lambda: _behind(subject, replace(reset, change=_kept), x, _PROMPT)[0])
    return not (isinstance(held, Tensor) and _is_near(held, right))


def _is_meant(subject: Subject, reset: Reset) -> bool:
    """Whether it changes what a prompt is answered, and either undoes the past or is one that a new cache may have.

    That leaves a new cache as new, and brings some of a used one back.
    """
    if reset.start is None:
        return False
    x = built(subject).input(_PROMPT + 1, _ROWS)
    right = _right(subject, x)
    used, is_back = _behind(subject, reset, x, _PROMPT)
    held = attempt(lambda: _behind(subject, replace(reset, change=_kept), x, _PROMPT)[0])
    if used.shape != right.shape or (isinstance(held, Tensor) and _is_near(used, held)):
        return False  # as one of what is counted beside
    new = attempt(lambda: _behind(subject, reset, x, 0)[0])
    if is_back and isinstance(new, Tensor) and _is_near(new, right):
        return True
    other = _behind(subject, reset, x, _PROMPT - 1)[0]
    return _is_near(used, other)


def _kept(module: nn.Module, cache: Any, *rows: Tensor) -> Any:
    return cache


def _behind(subject: Subject, reset: Reset, x: Tensor, earlier: int) -> tuple[Tensor, bool]:
    """Outputs behind a reset of a cache of so many tokens and a step; whether that brought some of it back."""
    assert subject.prefill is not None
    assert subject.step is not None
    sp = built(subject)
    seed_everything(subject.seed)
    with torch.no_grad():
        if earlier:
            tokens = sp.input(earlier + 1, _ROWS, subject.seed + 1 + earlier)
            _, cache = subject.prefill(sp.module, tokens[:, :earlier].clone())
            _, cache = subject.step(sp.module, tokens[:, earlier:].clone(), cache)
        else:
            assert reset.start is not None
            cache = reset.start(sp.module, x)
        was = kept(fields_of(cache, "cache"))
        cache = reset(sp.module, cache, torch.ones(_ROWS, dtype=torch.bool, device=x.device))
        left = kept(fields_of(cache, "cache"))
        due = {} if reset.start is None else kept(fields_of(reset.start(sp.module, x), "cache"))
        return _outputs(sp, x, reset.into, cache), _brought_back(was, left, due)


def _brought_back(was: Mapping[str, Field], left: Mapping[str, Field], due: Mapping[str, Field]) -> bool:
    """Whether something that a new one does not hold is as in a new one, or zero where that holds nothing there."""

    def is_new(path: str) -> bool:
        if path not in left:
            return path not in due
        value = left[path].value
        if path in due:
            return _same(value, due[path].value)
        return not bool(value.any()) if isinstance(value, Tensor) else not value

    changed = [path for path in was if path not in left or not _same(was[path].value, left[path].value)]
    return any(is_new(path) for path in changed)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _outputs(sp: BuiltModule, x: Tensor, into: Step, cache: Any) -> Tensor:
    assert sp.subject.step is not None
    with torch.no_grad():
        prompt, cache = into(sp.module, x[:, :_PROMPT].clone(), cache)
        prompt = prompt.clone()
        return torch.cat((prompt, sp.subject.step(sp.module, x[:, _PROMPT:].clone(), cache)[0]), 1)


def _right(subject: Subject, x: Tensor) -> Tensor:
    """Outputs of a prompt, and of a step behind it."""
    assert subject.prefill is not None
    prefill = subject.prefill
    seed_everything(subject.seed)
    return _outputs(built(subject), x, lambda module, x, cache: prefill(module, x), None)


def _is_near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    allowed = _NEAR.get(other.element_size(), _NEAR[2]) * float(other.abs().max())
    return bool((one.double() - other.double()).abs().max() <= allowed)
