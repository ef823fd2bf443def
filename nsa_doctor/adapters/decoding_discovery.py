"""Finds out how a plain module decodes: by its methods `prefill` and `step`, or by a cache that its forward takes.

A guess has to prove itself on a few tokens. Of methods of these names, what they give for the first token has to be
what one whole pass gives; of a forward, what it gives for a prompt and the next token too. A forward that takes and
returns what is called a cache, a past or a state decodes by it also where that gives something else, which is a fault
to be found, unless it wants positions beside it or all tokens again.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.answer_shapes import answer_of_tokens, with_answers_for_tokens
from nsa_doctor.adapters.decoding_again import by_all_tokens, leaves_out_those_known, spares_tokens
from nsa_doctor.adapters.decoding_methods import ASKING, CERTAIN, by_methods
from nsa_doctor.adapters.decoding_objects import by_cache_of_a_part, by_cache_of_forward, by_state_and_token
from nsa_doctor.adapters.decoding_proof import (
    LENGTH,
    failing_part,
    fills_its_cache,
    is_meant,
    proves_itself,
    takes_several,
)
from nsa_doctor.adapters.decoding_way import Decoding, Step
from nsa_doctor.adapters.input_discovery import called, parameter_names
from nsa_doctor.core.errors import Caught, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.probes.attention.decoding import SingleTokens
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.tensors.answer import split_answer
from nsa_doctor.subject.contract import Subject, WrongOutputError

_CACHES = (
    *("past_key_values", "past_key_value", "kv_cache", "cache", "state", "past_kv", "past", "layer_past", "caches"),
    *("cache_params", "kv_caches", "states", "kv", "memory", "hx", "mems", "memories"),
)
_KEYS_AND_VALUES = ("past_key_values", "past_key_value", "layer_past", "kv_cache", "kv_caches", "past_kv")
_HOLDING = ("cache", "caches")
_EARLIER = re.compile(r"^(prev|previous|past|last|init|initial)_")
_KEPT = re.compile("cache|state|hidden|past|carry|kv")  # no memories: those of segments are windows by design
_Flags = Mapping[str, Any]
_Split = Callable[[Any, Tensor], tuple[Tensor, Any]]
_POSITIONS = ("position_ids", "positions", "cache_position", "input_pos")  # tensors of whole numbers
_OFFSETS = ("start_pos", "offset", "position_offset", "past_length", "start")


def with_decoding(subject: Subject, module: nn.Module) -> Subject:
    """The subject with the first way of decoding that proves itself; as it is where none does."""
    if subject.max_length < LENGTH or subject.offers("prefill") or subject.offers("step"):
        return subject
    found, are_any = _first(subject, module)
    if found is None and are_any and (answering := _answering(subject, module)) is not None:
        found = _first(answering, module)[0]
    if found is None:
        return subject
    return replace(subject, prefill=found.prefill, step=found.step, notes=(*subject.notes, *found.notes[-1:]))


def _answering(subject: Subject, module: nn.Module) -> Subject | None:
    """The subject as it answers for tokens, where its own answer has other axes behind them."""
    sp = built(subject)
    answer = attempt(lambda: sp(sp.input(LENGTH)))
    error = answer.error if isinstance(answer, Caught) else None
    caught = error.caught.error if isinstance(error, SubjectFailedError) else None
    if not isinstance(caught, WrongOutputError):
        return None
    answering = with_answers_for_tokens(subject, module)
    return answering if answering.answer is not None and answering.answer[1][0] == "S" else None


def _first(subject: Subject, module: nn.Module) -> tuple[Subject | None, bool]:
    """The subject with the first way that proves itself, fails by accident, or is meant; whether there is any."""
    ways = [*by_methods(subject, module), *_by_forward(subject, module)]
    found = _proven(subject, ways)
    if found is None:
        further = [*_by_objects(subject, module)]
        found, ways = _proven(subject, further), [*ways, *further]
    if found is None:
        with_all = list(_with_all_tokens(subject, module))
        found = _proven(subject, with_all) or _meant(subject, with_all)
    if found is not None:
        return found, True
    for way in ways:
        part = attempt(lambda way=way: failing_part(subject, way))
        if isinstance(part, str):
            step: Step = SingleTokens(way.step, f"no {part} of one token ends", is_right=False)
            return _decoded_by(subject, way, step, f", though no {part} of it ends"), True
    return _meant(subject, ways), bool(ways)


def _meant(subject: Subject, ways: Iterable[Decoding]) -> Subject | None:
    """The subject with the first of these ways that is meant, though what it gives is other than in one whole pass."""
    for way in ways:
        if attempt(lambda way=way: is_meant(subject, way)) is True:
            several = attempt(lambda way=way: takes_several(subject, way)) is True
            why = "single tokens are other than in one whole pass"
            step = way.step if several else SingleTokens(way.step, why, is_right=False)
            more = "; its tokens are other than in one whole pass: where a step takes more, an Adapter gives it"
            return _decoded_by(subject, way, step, more)
    return None


def _proven(subject: Subject, ways: Iterable[Decoding]) -> Subject | None:
    """The subject with the first of these ways that proves itself."""
    for way in ways:
        if attempt(lambda way=way: proves_itself(subject, way)) is True:
            several = attempt(lambda way=way: takes_several(subject, way)) is True
            step = way.step if several else SingleTokens(way.step, "several at once give something else")
            more = "" if several else ", one token at a time: several at once give something else"
            return _decoded_by(subject, way, step, more)
    return None


def _decoded_by(subject: Subject, way: Decoding, step: Step, more: str) -> Subject:
    note = f"decoded by {way.words}, which was found by its names{more}"
    return replace(subject, prefill=way.prefill, step=step, notes=(*subject.notes, note))


def _by_forward(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """The module's forward, given the cache that it returned before by the parameter of that name."""
    parameters = _parameters_of(module)
    for name, asking in _taken_caches(module):
        for way in parameter_names(module, subject.input):

            def prefill(
                module: nn.Module, x: Tensor, way: str | None = way, name: str = name, asking: _Flags = asking
            ) -> tuple[Tensor, Any]:
                return _split(subject, called(module, x, way, asking), x, name)

            def step(
                module: nn.Module,
                x: Tensor,
                cache: Any,
                way: str | None = way,
                name: str = name,
                asking: _Flags = asking,
            ) -> Any:
                return _split(subject, called(module, x, way, {**asking, name: cache}), x, name)

            is_meant = name in CERTAIN or name not in _CACHES
            split = partial(_split, subject, name=name)
            others = tuple(_other_steps(split, way, asking, name, parameters)) if is_meant else None
            goes_on = name in _KEYS_AND_VALUES
            holds = goes_on or name in _HOLDING
            words = f"forward(x, {name}=...)"
            yield Decoding(
                words,
                prefill,
                step,
                is_certain=False,
                goes_on=goes_on,
                others=others,
                holds_the_past=holds,
                is_blamed=others is not None,
                is_summary=name in ("state", "states"),
            )


def _with_all_tokens(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """The module's forward, given the cache by a parameter of that name and all tokens so far, where it reads both."""
    for name, asking in _taken_caches(module):
        for way in parameter_names(module, subject.input):

            def call(
                module: nn.Module,
                x: Tensor,
                cache: Any,
                way: str | None = way,
                name: str = name,
                asking: _Flags = asking,
            ) -> Any:
                return called(module, x, way, asking if cache is None else {**asking, name: cache})

            words = f"forward(x, {name}=...) with all tokens so far"
            holds = name in (*_KEYS_AND_VALUES, *_HOLDING)
            split = partial(_split, subject, name=name)
            is_sure = attempt(lambda call=call, split=split: leaves_out_those_known(subject, call, split)) is True
            found = by_all_tokens(call, split, words, holds_the_past=holds, is_sure=is_sure)
            if attempt(lambda found=found: spares_tokens(subject, found)) is True:
                yield found


def _by_objects(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """A cache that the caller makes, given to the forward, to a part of it, or to a step."""
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)

    def last(answer: Any, x: Tensor) -> tuple[Tensor, Any]:
        output, _ = split_answer(answer, lambda each: each.ndim == 3 and each.is_floating_point())
        assert isinstance(output, Tensor)
        return output[:, -1:], None

    def others(way: str | None, name: str) -> tuple[Any, ...]:
        held = {} if isinstance(parameters, Caught) else parameters
        return tuple(_other_steps(last, way, {}, name, held))

    yield from by_state_and_token(subject, module)
    for way in (*by_cache_of_forward(subject, module, others), *by_cache_of_a_part(subject, module)):
        if way.is_blamed or attempt(lambda way=way: fills_its_cache(subject, way)) is True:
            yield way


def _parameters_of(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    signature = attempt(lambda: inspect.signature(module.forward))
    return signature.parameters if isinstance(signature, inspect.Signature) else {}


def _taken_caches(module: nn.Module) -> Iterator[tuple[str, _Flags]]:
    """Parameters that are None and may be a cache, and the flags that have one returned."""
    parameters = _parameters_of(module)
    general = {name: True for name in ASKING if name in parameters}
    asked_for = dict(_asked_for(parameters))
    for name in dict.fromkeys((*asked_for, *(name for name in _CACHES if name in parameters))):
        if parameters[name].default is None:
            yield name, {**general, **asked_for.get(name, {})}


def _asked_for(parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, _Flags]]:
    """What is None and named by a flag that has it returned, as `prev_hidden` by `return_next_prev_hidden`."""
    flags = [name for name, each in parameters.items() if each.default is False and name.startswith("return_")]
    for name in (name for name, each in parameters.items() if each.default is None):
        kept = _EARLIER.sub("", name)
        if (naming := [flag for flag in flags if kept in flag]) and _KEPT.search(kept):
            yield name, {naming[0]: True}


def _other_steps(
    split: _Split, way: str | None, asking: Mapping[str, Any], name: str, parameters: Mapping[str, Any]
) -> Iterator[tuple[Step, Step | None]]:
    """The last token with its position, by each parameter that may stand for one, and all tokens once more.

    With each comes the same at the first position, where it is given one.
    """

    def stepping(num_tokens: int | None, more: Callable[[Tensor], Mapping[str, Any]]) -> Step:
        def step(module: nn.Module, x: Tensor, cache: Any) -> Any:
            given = x if num_tokens is None else x[:, -num_tokens:]
            answer = called(module, given, way, {**asking, **more(x), name: cache})
            return split(answer, given[:, -1:])

        return step

    yield stepping(None, lambda x: {}), None
    ways: list[tuple[str, Callable[[int, Tensor], Any]]] = []
    for each in (each for each in _POSITIONS if each in parameters):
        ways += [(each, lambda position, x: torch.tensor([position]).expand(len(x), 1))]
        ways += [(each, lambda position, x: torch.tensor([position]))]
    ways += [(each, lambda position, x: position) for each in _OFFSETS if each in parameters]
    for each, given_at in ways:
        at_last = stepping(1, lambda x, each=each, given_at=given_at: {each: given_at(x.shape[1] - 1, x)})
        yield at_last, stepping(1, lambda x, each=each, given_at=given_at: {each: given_at(0, x)})


def _split(subject: Subject, answer: Any, x: Tensor, name: str) -> tuple[Tensor, Any]:
    """The output and the cache of an answer: the field of that name, or the only other part of a tuple.

    Raises WrongOutputError where there is nothing but the output, and NotComparableError where it is not clear which.
    """
    output, _ = answer_of_tokens(subject, answer, x)
    others: list[Any] = []
    cache = answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
    if cache is None and isinstance(answer, tuple):
        others = [each for each in answer if each is not output and each is not None]
        cache = others[0] if len(others) == 1 else None
    if cache is None and others:
        raise NotComparableError(f"which part of an answer of {len(answer)} is the {name} is not clear")
    if cache is None:
        raise WrongOutputError(f"forward returned no {name} beside its output")
    return output, cache
