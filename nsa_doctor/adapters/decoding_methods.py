"""The methods by which a plain module may decode: `prefill` and `step`, or a step from a first state or from none."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.adapters.answer_shapes import answer_of_tokens
from nsa_doctor.adapters.decoding_starts import Start, by_making, called_by, method_of, names_a_cache, num_required
from nsa_doctor.adapters.decoding_way import Decoding, Prefill, Step, read_by
from nsa_doctor.adapters.input_discovery import called, parameter_names
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.subject.contract import Subject

CERTAIN = (
    *("past_key_values", "past_key_value", "kv_cache", "kv_caches", "cache", "caches", "past_kv", "past", "layer_past"),
    *("state", "states", "cache_params"),
)
ASKING = ("use_cache", "return_cache", "return_state", "return_past")
_HIDDEN = ("hidden", "hidden_state", "hx")
_STEPS = (
    *("step", "decode_step", "decode", "forward_step", "decode_one", "extend", "stream", "forward_stream"),
    *("streaming_forward", "forward_streaming", "forward_recurrent", "recurrent_step", "single_step", "forward_one"),
)
_ONE = ("token", "tok", "token_id", "x_t", "xt", "last_token", "next_token")
_INPUTS = (
    *(
        "x",
        "input",
        "inputs",
        "tokens",
        "ids",
        "input_ids",
        "token_ids",
        "idx",
        "prompt",
        "hidden",
        "hidden_states",
        "u",
    ),
    *("inputs_embeds", "seq", "sequence", "embeddings", "emb"),
)
_BATCHES = ("batch", "data", "sample", "samples")  # of a training step
_ROWS = 3


def by_methods(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """Methods of the module by which it reads a prompt, and goes on from what that has left."""
    prefill: Any = method_of(module, "prefill")
    if prefill is None:
        yield from _by_a_step_alone(module)
        yield from _by_a_first_state(subject, module)
    if num_required(prefill) != 1:
        return
    more = next((each for each in list(inspect.signature(prefill).parameters)[1:2] if names_a_cache(each)), "")
    first = next(iter(inspect.signature(prefill).parameters), "")
    for name in _STEPS:
        step = method_of(module, name)
        names = [] if num_required(step) != 2 else list(inspect.signature(step).parameters)
        if not names:
            continue

        def step_of(module: nn.Module, x: Tensor, cache: Any, name: str = name) -> tuple[Tensor, Any]:
            by = "prefill" if more and x.shape[1] > 1 else name  # which goes on from what it is given
            return _pair(called_by(module, by, x, cache), cache)

        words = f"prefill(x{', ' * bool(more)}{more}) and {name}(x, {names[1]})"
        way = Decoding(
            words,
            lambda module, x: _pair(called_by(module, "prefill", x)),
            step_of,
            is_certain=True,
            goes_on=bool(more),
            is_named=names_a_cache(names[1]),
            takes_a_token=names[0] in _ONE,
            is_blamed=first in _INPUTS and names[0] in (*_INPUTS, *_ONE),
        )
        flat, flatly = _step_of(name, is_flat=True, are_several=False), f"{words} of a row's one token"
        # first, if it is right for several rows: one row's [1, 1, D] may pass for [1, D] by broadcasting
        yield replace(way, words=flatly, step=flat, is_certain=False, goes_on=False, is_blamed=False, num_rows=_ROWS)
        yield way


def _by_a_step_alone(module: nn.Module) -> Iterator[Decoding]:
    """A method that reads a prompt where it is given no state, and goes on from the one that it returned."""
    for name in _STEPS:
        step = method_of(module, name)
        second = list(inspect.signature(step).parameters.values())[1:2] if num_required(step) == 1 else []
        if second and second[0].default is None and second[0].name in (*CERTAIN, *_HIDDEN):

            def step_of(module: nn.Module, x: Tensor, state: Any = None, name: str = name) -> tuple[Tensor, Any]:
                output, left = _pair(called_by(module, name, x, state))
                if left is None:
                    raise TypeError("no state comes back")
                return output, left

            words = f"{name}(x, {second[0].name}=None)"
            yield Decoding(words, step_of, step_of, is_certain=True, goes_on=True, is_prompt_whole=True)
            flat = _step_of(name, is_flat=True, are_several=False)
            read = read_by(flat, lambda module, x: None)
            flatly = f"{words} of a row's one token"
            yield Decoding(flatly, read, flat, is_certain=True, is_prompt_whole=True, num_rows=_ROWS)


def _pair(answer: Any, cache: Any = None) -> tuple[Tensor, Any]:
    """Output and cache, the one given where a step changes it in place and returns the output alone."""
    if isinstance(answer, Tensor):
        return answer, cache
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(f"expected (output, cache), got {type(answer).__name__}")
    return answer


def _by_a_first_state(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """A step that wants a state, from one that a method makes or that the forward returns where it is asked for it.

    What it steps by may be a row's one token, [B] or [B, D], or a sequence of one, and its state several arguments.
    """
    starts = [*_by_asking(subject, module), *((words, None, start) for words, start in by_making(module))]
    for name in _STEPS if starts else ():
        step = method_of(module, name)
        names = list(inspect.signature(step).parameters)[: num_required(step)] if num_required(step) > 1 else []
        if not names or names[0] in _BATCHES or not all(names_a_cache(each) for each in names[1:]):
            continue
        are_flat = (True, False) if names[0] in _ONE else (False, True)
        for words, read, start in starts:
            for is_flat in are_flat:
                one = _step_of(name, is_flat=is_flat, are_several=len(names) > 2)
                yield Decoding(
                    f"{words} and {name}({', '.join(names)})" + (" of a row's one token" if is_flat else ""),
                    read or read_by(one, start),
                    one,
                    is_certain=True,
                    is_prompt_whole=read is not None,
                    takes_a_token=True,
                    num_rows=_ROWS,
                )


def _by_asking(subject: Subject, module: nn.Module) -> Iterator[tuple[str, Prefill | None, Start]]:
    """The forward, which returns a state beside its output where it is asked for one."""
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    for name in (name for name in ASKING if not isinstance(parameters, Caught) and name in parameters):
        for way in parameter_names(module, subject.input):

            def read(module: nn.Module, x: Tensor, name: str = name, way: str | None = way) -> tuple[Tensor, Any]:
                answer = called(module, x, way, {name: True})
                output, _ = answer_of_tokens(subject, answer, x)
                return output, _pair(answer)[1]

            yield f"forward(x, {name}=True)", read, lambda module, x: None


def _step_of(name: str, *, is_flat: bool, are_several: bool) -> Step:
    def step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if x.shape[1] != 1:
            raise ValueError("a step is given one token")
        answer = called_by(module, name, x[:, 0] if is_flat else x, *(state if are_several else (state,)))
        if are_several and isinstance(answer, tuple):
            answer = answer[0], answer[1:] or state
        output, state = _pair(answer, state)
        output = output.unsqueeze(1) if is_flat else output
        if output.shape[1] != 1 or len(output) != len(x) or state is None:
            raise TypeError(f"expected a state, and one output for each row's token, got {list(output.shape)}")
        return output, state

    return step
