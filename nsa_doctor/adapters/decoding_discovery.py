"""Finds out how a plain module decodes: by its methods `prefill` and `step`, or by a cache that its forward takes.

A guess has to prove itself on a few tokens. Of methods of these names, what they give for the first token has to be
what one whole pass gives; of a forward, what it gives for a prompt and the next token too. A forward that takes and
returns what is called a cache, a past or a state decodes by it also where that gives something else, which is a fault
to be found, unless it wants positions beside it or all tokens again.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.input_discovery import called, parameter_names, speaks_for_itself
from nsa_doctor.adapters.shared_reader import calls_in
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.attention.decoding import SingleTokens
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject

_PROMPT, _LENGTH = 4, 5
_CLOSE = {2: 0.02, 4: 2e-5, 8: 1e-9}  # by bytes of a value: how far two orders of the same sums may lie apart
_ALIKE = 0.05  # a cache that rounds is still a cache
_STEPS = ("step", "decode_step", "decode", "forward_step", "decode_one", "extend")
_ONE = ("token", "tok", "token_id", "x_t", "xt", "last_token", "next_token")
_CACHES = (
    *("past_key_values", "past_key_value", "kv_cache", "cache", "state", "past_kv", "past", "layer_past", "caches"),
    *("cache_params", "kv_caches", "states", "kv", "memory", "hx", "mems", "memories"),
)
_CERTAIN = (
    *("past_key_values", "past_key_value", "kv_cache", "kv_caches", "cache", "caches", "past_kv", "past", "layer_past"),
    *("state", "states", "cache_params"),
)
_HIDDEN = ("hidden", "hidden_state", "hx")
_KEYS_AND_VALUES = ("past_key_values", "past_key_value", "layer_past", "kv_cache", "kv_caches", "past_kv")
_POSITIONS = ("position_ids", "positions", "cache_position", "input_pos")  # tensors of whole numbers
_OFFSETS = ("start_pos", "offset", "position_offset", "past_length", "start")
_ASKING = ("use_cache", "return_cache", "return_state", "return_past")
Prefill = Callable[[nn.Module, Tensor], tuple[Tensor, Any]]
Step = Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Decoding:
    """A way to decode, in words; `is_certain` where its names alone leave no doubt about what a step does.

    It `goes_on` where they leave none that a step may be given several tokens, as a forward is that takes past keys and
    values, unless it does not look at them then. Where `is_prompt_whole`, what a prompt gives has to be what one pass
    gives, at all of its tokens. Where it is not `is_named`, nothing says that what a step is given is a cache but that
    a prompt returns it, and it is no tensor or number. A step `takes_a_token` where its argument is called one.

    `others` are steps that a module may want in its place, given all tokens so far, each with the one at the first
    position in its place: a module that gives another output then counts positions by itself.
    """

    words: str
    prefill: Prefill
    step: Step
    is_certain: bool
    goes_on: bool = False
    is_prompt_whole: bool = False
    is_named: bool = True
    takes_a_token: bool = False
    others: tuple[tuple[Step, Step | None], ...] | None = None


def with_decoding(subject: Subject, module: nn.Module) -> Subject:
    """The subject with the first way of decoding that proves itself; as it is where none does."""
    if subject.max_length < _LENGTH or subject.offers("prefill") or subject.offers("step"):
        return subject
    ways = [*_by_methods(module), *_by_forward(subject, module)]
    for way in ways:
        if attempt(lambda way=way: _proves_itself(subject, way)) is True:
            takes_several = attempt(lambda way=way: _takes_several(subject, way)) is True
            step = way.step if takes_several else SingleTokens(way.step, "several at once give something else")
            note = f"decoded by {way.words}, which was found by its names"
            note += "" if takes_several else ", one token at a time: several at once give something else"
            return replace(subject, prefill=way.prefill, step=step, notes=(*subject.notes, note))
    for way in ways:
        if way.is_certain and way.is_named and attempt(lambda way=way: _fails_at_a_step(subject, way)) is True:
            note = f"decoded by {way.words}, which was found by its names, though no step of it ends"
            step = SingleTokens(way.step, "no step of one token ends", is_right=False)
            return replace(subject, prefill=way.prefill, step=step, notes=(*subject.notes, note))
    for way in ways:
        if way.others is not None and attempt(lambda way=way: _is_meant(subject, way)) is True:
            note = (
                f"decoded by {way.words}, which was found by its names; its tokens are other than in one whole pass: "
            )
            note += "where a step takes more, an Adapter gives it"
            takes_several = attempt(lambda way=way: _takes_several(subject, way)) is True
            why = "single tokens are other than in one whole pass"
            step = way.step if takes_several else SingleTokens(way.step, why, is_right=False)
            return replace(subject, prefill=way.prefill, step=step, notes=(*subject.notes, note))
    return subject


def _by_methods(module: nn.Module) -> Iterator[Decoding]:
    """Methods of the module by which it reads a prompt, and goes on from what that has left."""
    prefill: Any = getattr(module, "prefill", None)
    if prefill is None:
        yield from _by_a_step_alone(module)
    if _required(prefill) != 1:
        return
    more = next((each for each in list(inspect.signature(prefill).parameters)[1:2] if _names_a_cache(each)), "")
    for name in _STEPS:
        step = getattr(module, name, None)
        names = [] if _required(step) != 2 else list(inspect.signature(step).parameters)  # type: ignore[arg-type]
        if names:

            def step_of(module: nn.Module, x: Tensor, cache: Any, name: str = name) -> tuple[Tensor, Any]:
                by = "prefill" if more and x.shape[1] > 1 else name  # which goes on from what it is given
                return _pair(_called(module, by, x, cache), cache)

            yield Decoding(
                f"prefill(x{', ' * bool(more)}{more}) and {name}(x, {names[1]})",
                lambda module, x: _pair(_called(module, "prefill", x)),
                step_of,
                is_certain=True,
                goes_on=bool(more),
                is_named=_names_a_cache(names[1]),
                takes_a_token=names[0] in _ONE,
            )


def _by_a_step_alone(module: nn.Module) -> Iterator[Decoding]:
    """A method that reads a prompt where it is given no state, and goes on from the one that it returned."""
    for name in _STEPS:
        step = getattr(module, name, None)
        second = list(inspect.signature(step).parameters.values())[1:2] if _required(step) == 1 else []  # type: ignore[arg-type]
        if second and second[0].default is None and second[0].name in (*_CERTAIN, *_HIDDEN):

            def step_of(module: nn.Module, x: Tensor, state: Any = None, name: str = name) -> tuple[Tensor, Any]:
                output, left = _pair(_called(module, name, x, state))
                if left is None:
                    raise TypeError("no state comes back")
                return output, left

            words = f"{name}(x, {second[0].name}=None)"
            yield Decoding(words, step_of, step_of, is_certain=True, goes_on=True, is_prompt_whole=True)


def _called(module: nn.Module, name: str, *given: Any) -> Any:
    method: Any = getattr(module, name)
    return method(*given)


def _required(method: Any) -> int:
    """How many arguments a method cannot do without; -1 where that is not known."""
    signature = attempt(lambda: inspect.signature(method)) if callable(method) else None
    if not isinstance(signature, inspect.Signature):
        return -1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in signature.parameters.values() if each.default is each.empty]
    return sum(each.kind in kinds for each in needed) if all(each.kind in kinds for each in needed) else -1


def _names_a_cache(name: str) -> bool:
    return any(word in name.lower() for word in ("cache", "state", "past", "kv", "memory", "hidden"))


def _pair(answer: Any, cache: Any = None) -> tuple[Tensor, Any]:
    """Output and cache, the one given where a step changes it in place and returns the output alone."""
    if isinstance(answer, Tensor):
        return answer, cache
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(f"expected (output, cache), got {type(answer).__name__}")
    return answer


def _by_forward(subject: Subject, module: nn.Module) -> Iterator[Decoding]:
    """The module's forward, given the cache that it returned before by the parameter of that name."""
    signature = attempt(lambda: inspect.signature(module.forward))
    parameters = signature.parameters if isinstance(signature, inspect.Signature) else {}
    asking = {name: True for name in _ASKING if name in parameters}
    for name in (name for name in _CACHES if name in parameters and parameters[name].default is None):
        for way in parameter_names(module, subject.input):

            def prefill(module: nn.Module, x: Tensor, way: str | None = way, name: str = name) -> tuple[Tensor, Any]:
                return _split(subject, called(module, x, way, asking), x, name)

            def step(module: nn.Module, x: Tensor, cache: Any, way: str | None = way, name: str = name) -> Any:
                return _split(subject, called(module, x, way, {**asking, name: cache}), x, name)

            others = tuple(_other_steps(subject, way, asking, name, parameters)) if name in _CERTAIN else None
            words, goes_on = f"forward(x, {name}=...)", name in _KEYS_AND_VALUES
            yield Decoding(words, prefill, step, is_certain=False, goes_on=goes_on, others=others)


def _other_steps(
    subject: Subject, way: str | None, asking: Mapping[str, Any], name: str, parameters: Mapping[str, Any]
) -> Iterator[tuple[Step, Step | None]]:
    """The last token with its position, by each parameter that may stand for one, and all tokens once more.

    With each comes the same at the first position, where it is given one.
    """

    def stepping(num_tokens: int | None, more: Callable[[Tensor], Mapping[str, Any]]) -> Step:
        def step(module: nn.Module, x: Tensor, cache: Any) -> Any:
            given = x if num_tokens is None else x[:, -num_tokens:]
            output, cache = _split(subject, called(module, given, way, {**asking, **more(x), name: cache}), given, name)
            return output[:, -1:], cache

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
    """The output and the cache of an answer: the field of that name, or the only other part of a tuple."""
    output, _ = checked_answer(subject, answer, x)
    cache = answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
    if cache is None and isinstance(answer, tuple):
        others = [each for each in answer if each is not output and each is not None]
        cache = others[0] if len(others) == 1 else None
    if cache is None:
        raise TypeError(f"no {name} comes back")
    return output, cache


def _proves_itself(subject: Subject, way: Decoding) -> bool:
    sp = built(subject)
    x = sp.input(_LENGTH)
    with torch.no_grad():
        whole = sp(x)
        if way.is_certain:
            count = _PROMPT if way.is_prompt_whole else 1
            output, cache = way.prefill(sp.module, x[:, :count].clone())
            if not way.is_named and (cache is None or isinstance(cache, (Tensor, int, float, str))):
                return False
            is_alike = _fits(output, whole) and _is_close(output, whole, count, _ALIKE)
            return is_alike and output.shape[1] == count and _fits(_next(sp, way, x)[1], whole)
        prompt, following = _next(sp, way, x)
        are_shaped = _fits(prompt, whole) and _fits(following, whole)
        return are_shaped and _is_close(prompt, whole, _PROMPT) and _is_close(following, whole, _LENGTH)


def _fails_at_a_step(subject: Subject, way: Decoding) -> bool:
    """Whether a prompt gives what one whole pass gives, and what follows it raises where nobody wrote a `raise`."""
    sp = built(subject)
    x = sp.input(_LENGTH)
    with torch.no_grad():
        whole = sp(x)
        prompt, cache = way.prefill(sp.module, x[:, :_PROMPT].clone())
        if not (_fits(prompt, whole) and _is_close(prompt, whole, _PROMPT)):
            return False
        failed = attempt(lambda: way.step(sp.module, x[:, _PROMPT:].clone(), cache))
    if not isinstance(failed, Caught) or isinstance(failed.error, NotImplementedError):
        return False
    return not speaks_for_itself(failed.error)


def _is_meant(subject: Subject, way: Decoding) -> bool:
    """Whether a step reads its cache, gives one output for one token, and no other step is what the module wants."""
    sp = built(subject)
    x, another = sp.input(_LENGTH), sp.input(_LENGTH, seed=subject.seed + 1)
    with torch.no_grad():
        whole = sp(x)
        prompt, following = _next(sp, way, x)
        if not (_fits(prompt, whole) and _fits(following, whole) and following.shape[1] == 1):
            return False
        cache = way.prefill(sp.module, another[:, :_PROMPT].clone())[1]
        after_another = way.step(sp.module, x[:, _PROMPT:].clone(), cache)[0]
        if _is_near(after_another, following, whole):
            return False

        def gives(step: Step, expected: Tensor) -> bool:
            cache = way.prefill(sp.module, x[:, :_PROMPT].clone())[1]
            return _is_near(step(sp.module, x.clone(), cache)[0], expected, whole)

        def is_right(at_last: Step, at_first: Step | None) -> bool:
            """Whether it is what the module wants: one that counts positions by itself wants none."""
            return gives(at_last, whole[:, -1:]) and (at_first is None or gives(at_first, following))

        return not any(attempt(lambda pair=pair: is_right(*pair)) is True for pair in way.others or ())


def _is_near(one: Tensor, other: Tensor, whole: Tensor) -> bool:
    allowed = _CLOSE.get(whole.element_size(), _CLOSE[2]) * float(whole.abs().max())
    return bool((one.double() - other.double()).abs().max() <= allowed)


def _takes_several(subject: Subject, way: Decoding) -> bool:
    """Whether several tokens at once give what one whole pass does, or one by one, or are meant to."""
    sp = built(subject)
    x, another = sp.input(_LENGTH), sp.input(_LENGTH, seed=subject.seed + 1)
    with torch.no_grad():
        output = _several(sp, way, x, x)
        if _is_close(output, whole := sp(x), _LENGTH) or _is_near(output, _one_by_one(sp, way, x), whole):
            return True
        goes_on = way.goes_on or _reads_both(sp, way, x)
        return goes_on and not _is_near(output, _several(sp, way, another, x), whole)


def _reads_both(sp: BuiltModule, way: Decoding, x: Tensor) -> bool:
    """Whether one function of the subject's reads a prompt, and a token behind it with the cache."""
    packages = sp.subject.packages
    if way.takes_a_token:
        return False
    of_prompt, (prompt, cache) = calls_in(packages, lambda: way.prefill(sp.module, x[:, :_PROMPT].clone()))
    of_step, (following, _) = calls_in(packages, lambda: way.step(sp.module, x[:, _PROMPT:].clone(), cache))
    going_on = [each for each in of_step if each.holds(cache) and each.gives(following)]
    return any(one.is_as(other) for one in going_on for other in of_prompt if other.gives(prompt))


def _several(sp: BuiltModule, way: Decoding, prompt: Tensor, x: Tensor) -> Tensor:
    """All but two tokens of x at once, behind the two of a prompt."""
    cache = way.prefill(sp.module, prompt[:, :2].clone())[1]
    return way.step(sp.module, x[:, 2:].clone(), cache)[0].clone()


def _one_by_one(sp: BuiltModule, way: Decoding, x: Tensor) -> Tensor:
    cache, outputs = way.prefill(sp.module, x[:, :2].clone())[1], []
    for token in x[:, 2:].split(1, 1):
        output, cache = way.step(sp.module, token.clone(), cache)
        outputs.append(output.clone())
    return torch.cat(outputs, 1)


def _next(sp: BuiltModule, way: Decoding, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of a prompt, and of the token behind it."""
    prompt, cache = way.prefill(sp.module, x[:, :_PROMPT].clone())
    return prompt.clone(), way.step(sp.module, x[:, _PROMPT:].clone(), cache)[0]


def _fits(output: Any, whole: Tensor) -> bool:
    is_alike = isinstance(output, Tensor) and output.ndim == whole.ndim and output.shape[2:] == whole.shape[2:]
    return is_alike and len(output) == len(whole) and 1 <= output.shape[1] <= _PROMPT


def _is_close(output: Tensor, whole: Tensor, end: int, most: float | None = None) -> bool:
    """Whether it is what one whole pass gives for the tokens before `end`."""
    expected = whole[:, end - output.shape[1] : end]
    allowed = (most or _CLOSE.get(whole.element_size(), _CLOSE[2])) * float(whole.abs().max())
    return bool((output.double() - expected.double()).abs().max() <= allowed)
