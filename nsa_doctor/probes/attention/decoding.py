"""Decoding through a cache: feed a sequence in parts, and find the module in which it parts from one whole pass."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.decode_origin import Origin, first_unknown
from nsa_doctor.probes.attention.fed_parts import Part
from nsa_doctor.probes.attention.stepped_operations import Taken, first_unlike
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Asked, Subject, WrongOutputError
from nsa_doctor.subject.geometry_rules import rules_of

_FEW, _DEFAULT_LENGTH, _MOST_STEPS, _LONGEST = 6, 70, 150, 600
_ROUNDINGS = 1e6  # a module's output at one token differs by more than any order of its sums makes it differ


@dataclass(frozen=True)
class Decoded:
    """Outputs [B, N, ...] of the N tokens at `tokens`, and the cache at the end."""

    output: Tensor
    tokens: list[int]
    cache: Any


def decode(
    sp: BuiltModule, x: Tensor, sizes: Sequence[int], between: Callable[[Any], None] = lambda cache: None
) -> Decoded:
    """Feed x [B, S, ...] in parts of these sizes, the first as the prompt; `between` gets the cache after each part."""
    outputs: list[Tensor] = []
    tokens: list[int] = []
    cache, start = None, 0
    seed_everything(sp.subject.seed)
    with torch.no_grad():
        for part in x.split(list(sizes), dim=1):
            width = outputs[0].shape[2:] if outputs else None
            output, cache = answer_to_part(sp, part, cache, is_prompt=start == 0, width=width)
            between(cache)
            num_answered = min(output.shape[1], part.shape[1])  # some answer for the last token alone
            outputs.append(output[:, -num_answered:])
            tokens += range(start + part.shape[1] - num_answered, start + part.shape[1])
            start += part.shape[1]
    return Decoded(torch.cat(outputs, dim=1), tokens, cache)


def decoding_module(subject: Subject) -> BuiltModule:
    """A built module that decodes: in float64 where its cache works in it, else in its own dtype."""
    wide = comparable_module(subject)
    try:
        decode(wide, wide.input(3), [2, 1])
    except SubjectFailedError:
        return built(subject)
    return wide


@dataclass(frozen=True)
class SingleTokens:
    """A step that is not given several tokens, and why: what it was not seen to serve is not held against it.

    It `is_right` where its single tokens are.
    """

    step: Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]]
    why: str
    is_right: bool = True

    def __call__(self, module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """The step; raises ValueError for several tokens."""
        if x.shape[1] > 1:
            raise ValueError(f"a step is given one token: {self.why}")
        return self.step(module, x, cache)


@dataclass(frozen=True)
class ReadByTokens:
    """A prompt that is read token by token, as there is no other way to read one."""

    prefill: Callable[[nn.Module, Tensor], tuple[Tensor, Any]]

    def __call__(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        """The outputs of all tokens, and the cache behind them."""
        return self.prefill(module, x)


def require_steps_of_several(sp: BuiltModule) -> None:
    """Raise where a step is not given several tokens: NotApplicableError if single ones are right.

    NotComparableError where they are not, so that nobody can tell. NotApplicableError too for a step that refuses two,
    three and eight tokens alike.
    """
    step = inspect.unwrap(sp.subject.step) if sp.subject.step is not None else None
    if isinstance(step, SingleTokens):
        raise (NotApplicableError if step.is_right else NotComparableError)(f"several tokens at once: {step.why}")
    refusal = ""
    with unobserved():
        for prompt, size in ((1, 8), (5, 3), (4, 2)):
            try:
                decode(sp, sp.input(prompt + size), [prompt, size])
            except SubjectFailedError as failure:
                refusal = failure.caught.sentence
            else:
                return
    raise NotApplicableError(f"its step takes one token at a time ({refusal})")


def differs(sp: BuiltModule, x: Tensor, decoded: Decoded, first: int = 0) -> Departure | None:
    """How decoded tokens, from the first one on, depart from one pass over all of x."""
    whole, places = baseline(sp, x), [index for index, token in enumerate(decoded.tokens) if token >= first]
    tokens = [decoded.tokens[index] for index in places]
    found = whole.departure(decoded.output[:, places], tokens=tokens)  # type: ignore[arg-type]
    return None if found is None else replace(found, first_token=tokens[found.first_token])


def lengths_to_decode(subject: Subject) -> tuple[int, int]:
    """How many tokens to take one by one, and up to which length after a longer prompt."""
    if subject.is_slow:
        return min(_FEW, subject.max_length), min(2 * _FEW, subject.max_length)
    try:
        lengths = rules_of(subject).telling_lengths(min(subject.max_length, _LONGEST))
    except NotApplicableError:
        return min(_DEFAULT_LENGTH, subject.max_length), min(2 * _DEFAULT_LENGTH, subject.max_length)
    return max((length for length in lengths if length <= _MOST_STEPS), default=min(lengths)), lengths[-1]


def guilty_module(sp: BuiltModule, x: Tensor, sizes: Sequence[int], token: int) -> Place:
    """The first module whose output at `token` is another than in one whole pass although its input is not.

    Its line is the first that computes what the whole pass does not, where one is seen, and that of its forward else.
    """
    departing = departing_line(sp, x, sizes, token)
    found = None if departing is None else departing.place
    path, before, end = _departing(sp, x, sizes, token)
    start = sum(before)

    def last() -> tuple[Tensor, Any]:
        return _last_part(sp, x[:, start:end], cache)

    cache = None if not before else decode(sp, x[:, :start], before).cache
    if path is None:
        return found or origin(sp.subject, sp.module, last)
    child = part_at(sp.module, path)
    taken = Taken(start, end, x.shape[1])
    line = found or first_unlike(sp, child, lambda: sp(x), lambda: last()[0], taken)
    return replace(line or definition_place(child), module=path, module_class=type(child).__name__)


def departing_line(sp: BuiltModule, x: Tensor, sizes: Sequence[int], token: int) -> Origin | None:
    """Where the part that holds the token departs, fed after those before it; None where that is not seen."""
    parts, start = list[Part](), 0
    for size in sizes:
        parts.append(Part(start, start + size))
        start += size
        if start > token:
            break

    def feed(begin: Callable[[int], None], parts: Sequence[Part]) -> object:
        number = iter(range(1, len(parts) + 1))
        begin(0)
        sizes = [each.end - each.start for each in parts]
        return decode(sp, x[:, : parts[-1].end], sizes, lambda cache: begin(next(number)))

    found = attempt(lambda: first_unknown(sp, x, lambda: sp(x), feed, parts, token))
    return None if isinstance(found, Caught) else found


def departing_module(sp: BuiltModule, x: Tensor, sizes: Sequence[int], token: int) -> str | None:
    """The path of that module; None where none is seen."""
    return _departing(sp, x, sizes, token)[0]


def _departing(sp: BuiltModule, x: Tensor, sizes: Sequence[int], token: int) -> tuple[str | None, list[int], int]:
    """The path of the module, the sizes of the parts before the one that holds the token, and where that one ends."""
    module = sp.module
    with _recorded(module) as whole, torch.no_grad():
        sp(x)
    end, kept = 0, list[int]()
    for size in sizes:
        kept.append(size)
        end += size
        if end > token:
            break
    before = kept[:-1]
    start = sum(before)
    earlier = decode(sp, x[:, :start], before) if before else None
    with _recorded(module) as stepped:
        _last_part(sp, x[:, start:end], None if earlier is None else earlier.cache)
    for path, kind, calls in _ended(stepped):
        other = whole.get((path, kind, calls))
        if other is None:
            continue
        now = stepped[path, kind, calls]
        width = end - start
        inputs_agree = _agree(other[0], now[0], token, token - start, x.shape[1], width)
        outputs_agree = _agree(other[1], now[1], token, token - start, x.shape[1], width)
        if inputs_agree is not False and outputs_agree is False:
            return path, before, end
    return None, before, end


_Key = tuple[str, str, int]
_Record = dict[_Key, tuple[Any, Any]]


def _ended(record: _Record) -> Iterator[_Key]:
    yield from record


def _last_part(sp: BuiltModule, part: Tensor, cache: Any) -> Any:
    with torch.no_grad():
        return answer_to_part(sp, part, cache, is_prompt=cache is None)


@contextmanager
def _recorded(module: nn.Module) -> Iterator[_Record]:
    """Inputs and outputs of every call of every submodule, in the order the calls end."""
    record: _Record = {}
    counts: dict[str, int] = {}
    hooks = []
    for path, child in module.named_modules():

        def note(child: nn.Module, inputs: Any, output: Any, path: str = path) -> None:
            counts[path] = counts.get(path, 0) + 1
            record[path, type(child).__name__, counts[path]] = (_first(inputs), _first(output))

        hooks.append(child.register_forward_hook(note))
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


def _first(value: Any) -> Tensor | None:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    found = next((part for part in parts if isinstance(part, Tensor)), None)
    return None if found is None else found.detach().clone()


def _agree(whole: Any, part: Any, token: int, offset: int, length: int, width: int) -> bool | None:
    """Whether two tensors [B, S, ...] and [B, T, ...] hold the same at a token; None where that cannot be compared."""
    if whole is None or part is None or whole.ndim < 3 or part.ndim != whole.ndim or not whole.is_floating_point():
        return None
    if whole.shape[1] != length or part.shape[1] != width or whole.shape[2:] != part.shape[2:]:
        return None
    first, second = whole[:, token].double(), part[:, offset].double()
    bound = _ROUNDINGS * torch.finfo(whole.dtype).eps * float(first.abs().max())
    return bool(((first - second).abs() <= bound).all())


def answer_to_part(
    sp: BuiltModule, part: Tensor, cache: Any, *, is_prompt: bool, width: torch.Size | None = None
) -> tuple[Tensor, Any]:
    """The output of one part of a sequence, of all its tokens or of the last alone, and the cache behind it.

    `width` is that of what parts before it were answered with.
    """
    prefill, step = sp.subject.prefill, sp.subject.step
    assert prefill is not None
    assert step is not None

    def answer(module: nn.Module) -> Any:
        return prefill(module, part.clone()) if is_prompt else step(module, part.clone(), cache)

    def checked() -> tuple[Tensor, Any]:
        return _checked(sp.subject, answer, part, width, answer(sp.module))

    return ask("prefill" if is_prompt else "step", checked, sp.module)


def _checked(
    subject: Subject, again: Callable[[nn.Module], Any], part: Tensor, width: torch.Size | None, answer: Any
) -> tuple[Tensor, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Tensor) or answer[0].ndim < 3:
        kind = type(answer).__name__
        raise WrongOutputError(f"decoding must return (output [B, T, ...], cache), got {kind}")
    (num_rows, length), shape = part.shape[:2], answer[0].shape
    if shape[0] != num_rows or 1 < shape[1] < length or shape[1] == 0:
        size = ", ".join(map(str, (num_rows, length, "...")))
        message = f"decoding returned an output {list(shape)}, expected [{size}], or of the last token alone"
        raise WrongOutputError(message, Asked(again, subject.packages, length, shape))
    require_width(answer[0], width, Asked(again, subject.packages, length, shape))
    return answer


def require_width(output: Tensor, width: torch.Size | None, asked: Asked | None = None) -> None:
    """Raise WrongOutputError for a token whose values are not as many as those of the tokens before it."""
    if width is not None and output.shape[2:] != width:
        many = " x ".join(map(str, width))
        raise WrongOutputError(f"a step returned {list(output.shape)}, after tokens of {many} values each", asked)
