"""The ways in which a plain module may decode by a cache that its caller makes, and that it extends in place.

By a parameter of its forward, or of that of one of its parts, which the forward does not hand on; or by a method that
takes a state and one token.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.answer_shapes import answer_of_tokens
from nsa_doctor.adapters.cache_makers import by_makers
from nsa_doctor.adapters.decoding_starts import (
    Start,
    by_class,
    by_making,
    called_by,
    method_of,
    names_a_cache,
    num_layers,
    num_required,
)
from nsa_doctor.adapters.decoding_way import Decoding, Step, read_by
from nsa_doctor.adapters.input_discovery import called, parameter_names
from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.attention.decoding import ReadByTokens
from nsa_doctor.probes.attention.reset_cache import ReadFrom
from nsa_doctor.probes.model.state_fields import fields_of
from nsa_doctor.subject.contract import Subject

_TAKEN_BY = re.compile(
    r"(\w*_)?(cache|caches|past_key_values?|layer_past|past_kv|past|inference_params|cache_params|state|states|memory)"
)
_STATES = ("state", "states", "memory")
_BY_THEIR_CALLER = ("inference_params",)  # who counts the tokens
_COUNTS = re.compile(r"\w*(seen|offset|pos|position|cur|current|index|idx|filled|used|length|len|step|count|tokens)")
_ADVANCING = ("advance", "increment", "advance_by", "step", "bump")
_STEPS = (
    *("step", "decode_step", "decode", "forward_step", "decode_one", "extend", "stream", "advance", "push", "feed"),
    *("append", "append_token", "next", "next_logits", "read", "forward_one", "single_step", "decode_token"),
)
_TOKENS = (
    *("token", "tok", "token_id", "x_t", "xt", "last_token", "next_token", "byte", "char", "symbol", "id", "x"),
    *("ids", "tokens", "input_ids", "frame", "inp", "input"),
)
_BEGINNINGS = ("start", "begin", "initial_state", "zero_state", "new_session")


def by_cache_of_forward(
    subject: Subject, module: nn.Module, others: Callable[[str | None, str], tuple[Any, ...]]
) -> Iterator[Decoding]:
    """The module's forward, given a fresh cache that it extends; `others` are steps it may want, by way and name."""
    names, own = _taking(module), [words for words, _ in by_making(module)]
    for name in names:
        further = [*by_makers(module, name, subject.packages)]
        starts = [*_starts(subject, module), *_plain(module), *further]
        made = [*own, *(words for words, _ in further)]
        for (words, start), way in ((start, way) for start in starts for way in parameter_names(module, subject.input)):
            for advance, by in ((None, ""), (_by_hand, ", whose tokens its caller counts")):

                def step(
                    module: nn.Module,
                    x: Tensor,
                    cache: Any,
                    way: str | None = way,
                    name: str = name,
                    advance: Any = advance,
                ) -> Any:
                    before = _counts(cache)
                    answer = called(module, x, way, {name: cache})
                    output, cache = answer_of_tokens(subject, answer, x)[0], _left(answer, cache)
                    if advance is not None:
                        advance(cache, before, x.shape[1])
                    return output, cache

                yield _way(
                    f"forward(x, {name}={words}){by}",
                    step,
                    start,
                    goes_on=words in made or not _takes_a_mask(module),
                    others=None if advance or name in _BY_THEIR_CALLER else others(way, name),
                    is_summary=name in _STATES,
                    is_blamed=advance is None and words in own and words.endswith(f"{name}()"),
                    counts=_counts,
                )


def by_cache_of_a_part(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """The module's forward, one of whose parts is given a fresh cache that the forward does not hand on."""
    seen: list[str] = []
    for path, part in module.named_modules():
        is_own = type(part).__module__.partition(".")[0] in subject.packages
        if part is module or not is_own or any(path.startswith(f"{each}.") for each in seen):
            continue
        for name in _taking(part):
            seen.append(path)
            for words, start in _starts(subject, part):

                def step(module: nn.Module, x: Tensor, cache: Any, path: str = path, name: str = name) -> Any:
                    with _handed(dict(module.named_modules())[path], name, cache) as calls:
                        answer = subject.forward(module, x)
                    if len(calls) != 1:
                        raise TypeError(f"{path} is called {len(calls)} times, expected once")
                    return answer_of_tokens(subject, answer, x)[0], cache

                def begun(module: nn.Module, x: Tensor, path: str = path, start: Start = start) -> Any:
                    return start(dict(module.named_modules())[path], x)

                way = f"forward(x) with {path}(..., {name}={words})"
                yield _way(way, step, begun, goes_on=not _takes_a_mask(part))


def by_state_and_token(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """A method that takes a state and one token, in either order, and answers for that token."""
    for name in _STEPS if method_of(module, "prefill") is None else ():
        method = method_of(module, name)
        if hasattr(nn.Module, name) or num_required(method) != 2:
            continue
        names = list(inspect.signature(method).parameters)[:2]
        is_state_first = names_a_cache(names[0]) or _TAKEN_BY.fullmatch(names[0]) is not None
        if not (is_state_first or names_a_cache(names[1])) or names[is_state_first] not in _TOKENS:
            continue
        starts = [*by_making(module, _BEGINNINGS), *by_class(module, subject.packages)]
        for words, start in starts:
            for by, step, begun in _steps_of(
                name, start, is_state_first=is_state_first, of_ids=subject.input == "tokens"
            ):
                yield Decoding(
                    f"{words} and {name}({', '.join(names)}){by}",
                    ReadByTokens(read_by(step, lambda module, x, begun=begun: _made(begun, module, x))),
                    step,
                    is_certain=True,
                    takes_a_token=True,
                    num_rows=2,
                )


def _way(words: str, step: Step, start: Start, *, goes_on: bool, **more: Any) -> Decoding:
    return Decoding(
        words,
        ReadFrom(lambda module, x: _made(start, module, x), step),
        step,
        is_certain=False,
        goes_on=goes_on,
        takes_a_token=not goes_on,
        **more,
    )


def _made(start: Start, module: nn.Module, x: Tensor) -> Any:
    cache = start(module, x)
    if cache is None:
        raise TypeError("expected a cache, got None")
    return cache


def _taking(module: nn.Module) -> list[str]:
    """Parameters of its forward that take a cache, and are None where there is none."""
    signature = attempt(lambda: inspect.signature(module.forward))
    parameters = signature.parameters if isinstance(signature, inspect.Signature) else {}
    return [name for name, each in parameters.items() if each.default is None and _TAKEN_BY.fullmatch(name)]


def _takes_a_mask(module: nn.Module) -> bool:
    """Whether its caller may have to say which of several tokens see which, and of which past."""
    parameters = attempt(lambda: list(inspect.signature(module.forward).parameters))
    return isinstance(parameters, list) and any("mask" in name or "bias" in name for name in parameters)


def _starts(subject: Subject, module: nn.Module) -> list[tuple[str, Start]]:
    return [*by_making(module), *by_class(module, subject.packages)]


def _plain(module: nn.Module) -> Iterator[tuple[str, Start]]:
    """Containers that a module may fill."""
    yield "{}", lambda module, x: {}
    if attempt(lambda: num_layers(module)) in range(1, 1000):
        yield "a list of None for each layer", lambda module, x: [None] * num_layers(module)
        yield "a list of {} for each layer", lambda module, x: [{} for _ in range(num_layers(module))]


def _left(answer: Any, cache: Any) -> Any:
    """The cache behind a call: the part of its answer that is one like that given, or that itself."""
    parts = answer if isinstance(answer, tuple) else ()
    alike = [each for each in parts if type(each) is type(cache) and not isinstance(each, Tensor)]
    return alike[0] if len(alike) == 1 else cache


def _counts(cache: Any) -> dict[str, int]:
    """Whole numbers of the cache that may count its tokens."""
    held = {field.path: field.value for field in fields_of(cache, "cache").values()}
    return {
        path: value for path, value in held.items() if type(value) is int and _COUNTS.fullmatch(path.split(".")[-1])
    }


def _by_hand(cache: Any, before: dict[str, int], count: int) -> None:
    """Count tokens in a cache whose counts a call leaves as they are; raises TypeError where none is left."""
    method = next((name for name in _ADVANCING if num_required(getattr(cache, name, None)) == 1), None)
    if method is not None:
        getattr(cache, method)(count)
        return
    stays = [path for path, value in before.items() if _counts(cache).get(path) == value and path.count(".") == 1]
    if not stays:
        raise TypeError("no count is left to its caller")
    for name in (path.partition(".")[2] for path in stays):
        setattr(cache, name, getattr(cache, name) + count)


@contextmanager
def _handed(part: nn.Module, name: str, cache: Any) -> Iterator[list[None]]:
    """Hands a cache to a part of a module by that name where it is called; raises TypeError where it is given one."""
    signature, calls = inspect.signature(part.forward), list[None]()

    def hand(part: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        calls.append(None)
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get(name) is not None:
            raise TypeError(f"{name} is given to it")
        bound.arguments[name] = cache
        return bound.args, bound.kwargs

    handle = part.register_forward_pre_hook(hand, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def _steps_of(name: str, start: Start, *, is_state_first: bool, of_ids: bool) -> Iterator[tuple[str, Step, Start]]:
    """How a method may be given its token: [B, 1] or [B] of one state, or a row's alone, of a state for each row."""

    def answer(module: nn.Module, token: Any, state: Any) -> tuple[Tensor, Any]:
        given = (state, token) if is_state_first else (token, state)
        answer = called_by(module, name, *given)
        if isinstance(answer, tuple) and len(answer) == 2:
            tensors = [each for each in answer if isinstance(each, Tensor) and each.is_floating_point()]
            others = [each for each in answer if not any(each is one for one in tensors[:1])]
            return tensors[0], others[0]
        if not isinstance(answer, Tensor):
            raise TypeError(f"expected an output, got {type(answer).__name__}")
        return answer, state

    def of_rows(module: nn.Module, x: Tensor, state: Any, *, is_flat: bool) -> tuple[Tensor, Any]:
        output, state = answer(module, x[:, 0] if is_flat else x, state)
        output = output.unsqueeze(1) if output.ndim == 2 else output
        if x.shape[1] != 1 or output.shape[:2] != x.shape[:2] or state is None:
            raise TypeError(f"expected one output for each row's token, got {list(output.shape)}")
        return output, state

    def of_each(module: nn.Module, x: Tensor, states: list[Any], *, make: Callable[[Tensor], Any]) -> Any:
        if x.shape[1] != 1:
            raise ValueError("a step is given one token")
        pairs = [answer(module, make(row), state) for row, state in zip(x, states, strict=True)]
        outputs = [output.reshape(1, 1, -1) for output, _ in pairs]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), [state for _, state in pairs]

    def each_started(module: nn.Module, x: Tensor) -> list[Any]:
        return [_made(start, module, row[None]) for row in x]

    yield "", lambda module, x, state: of_rows(module, x, state, is_flat=False), start
    yield " of a row's one token", lambda module, x, state: of_rows(module, x, state, is_flat=True), start
    if of_ids:
        number = lambda row: int(row[0])  # noqa: E731
        yield " of a row's number", lambda module, x, states: of_each(module, x, states, make=number), each_started
    for by, make in ((" of one row", lambda row: row[None]), (" of one row's one token", lambda row: row)):
        yield by, lambda module, x, states, make=make: of_each(module, x, states, make=make), each_started
