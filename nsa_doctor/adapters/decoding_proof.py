"""Whether a way to decode proves itself on a few tokens, raises by accident, or is meant though it goes wrong."""

from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.decoding_way import Decoding, Step
from nsa_doctor.adapters.input_discovery import speaks_for_itself
from nsa_doctor.adapters.shared_reader import calls_in
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.state_fields import fields_of
from nsa_doctor.subject.contract import Subject

_PROMPT, LENGTH = 4, 5
_CLOSE = {2: 0.02, 4: 2e-5, 8: 1e-9}  # by bytes of a value: how far two orders of the same sums may lie apart
_ALIKE = 0.05  # a cache that rounds is still a cache
_MUCH = 0.5  # of one in the direction of all values
_PROMPTS = (1, 4, 8)
_SUBJECTS = 3  # the rank of its own lines


def proves_itself(subject: Subject, way: Decoding) -> bool:
    sp = built(subject)
    x = sp.input(LENGTH, way.num_rows)
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
        return are_shaped and _is_close(prompt, whole, _PROMPT) and _is_close(following, whole, LENGTH)


def fills_its_cache(subject: Subject, way: Decoding) -> bool:
    """Whether a prompt leaves a number or a tensor in its cache."""
    sp = built(subject)
    with torch.no_grad():
        return bool(fields_of(way.prefill(sp.module, sp.input(_PROMPT, way.num_rows))[1], "cache"))


def failing_part(subject: Subject, way: Decoding) -> str | None:
    """`prompt` or `step`, whichever raises where nobody wrote a `raise`; None where neither is sure to.

    A prompt of several tokens raises at every length. Where it does not, it gives what one whole pass gives before what
    follows it raises, and no other step that a forward may want gives what one pass does.
    """
    if not way.is_blamed:
        return None
    sp = built(subject)
    x = sp.input(LENGTH, way.num_rows)
    with torch.no_grad():
        whole = sp(x)
        prompts = [attempt(lambda n=n: way.prefill(sp.module, sp.input(n, way.num_rows))) for n in _PROMPTS]
        needed = prompts[1:] if way.is_certain else prompts  # one token may go through by broadcasting
        if all(_is_accident(subject, each) for each in needed):
            return None if any(_may_wait(each) for each in needed) else "prompt"
        if not way.is_named:
            return None
        prompt, cache = way.prefill(sp.module, x[:, :_PROMPT].clone())
        if not (_fits(prompt, whole) and _is_close(prompt, whole, _PROMPT)):
            return None
        failed = attempt(lambda: way.step(sp.module, x[:, _PROMPT:].clone(), cache))
        if not _is_accident(subject, failed):
            return None
        others = (attempt(lambda each=each: _gives(sp, way, each, whole[:, -1:])) for each, _ in way.others or ())
        return None if any(each is True for each in others) else "step"


def _is_accident(subject: Subject, answer: object) -> bool:
    """Whether it raised below a line of the subject's, and by no `raise` of its own."""
    if not isinstance(answer, Caught) or isinstance(answer.error, NotImplementedError):
        return False
    frames, traceback = FrameFilter(subject.packages), answer.error.__traceback__
    ranks = [frames.rank_of(each.f_code) for each, _ in walk_tb(traceback)]
    return _SUBJECTS in ranks and not speaks_for_itself(answer.error)


def _may_wait(answer: object) -> bool:
    """Whether something is missing that whoever calls the module may have to set up, or to hand in.

    That is None, an attribute or a key, missed in a method of a module; what a prompt makes for itself, as a cache is,
    nobody else sets up.
    """
    error = answer.error if isinstance(answer, Caught) else None
    is_missing = isinstance(error, (AttributeError, KeyError)) or "NoneType" in str(error)
    if error is None or not is_missing:
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    return isinstance(frame.f_locals.get("self"), nn.Module)


def is_meant(subject: Subject, way: Decoding) -> bool:
    """Whether a step serves as one, though its tokens are other than in one whole pass.

    It gives one output for one token and reads its cache, unless that is sure to hold the past, and no other step is
    what the module wants. Of methods of these names, and of a cache that its caller makes, a prompt gives much of what
    one pass gives, at its own tokens.
    """
    if way.num_rows is not None or (way.others is None and not (way.is_certain and way.is_named)):
        return False  # a row's one token proves itself, or is none
    sp = built(subject)
    x, another = sp.input(LENGTH, way.num_rows), sp.input(LENGTH, way.num_rows, subject.seed + 1)
    with torch.no_grad():
        whole = sp(x)
        prompt, following = _next(sp, way, x)
        if not (_fits(prompt, whole) and _fits(following, whole) and following.shape[1] == 1):
            return False
        is_guessed = way.others is None or way.counts is not None
        if is_guessed and not _is_much_like(prompt, whole, sp(x[:, :_PROMPT].clone())):
            return False
        if way.is_summary and _likeness(following, whole[:, -1:]) < _MUCH:
            return False
        cache = way.prefill(sp.module, another[:, :_PROMPT].clone())[1]
        if way.counts is not None and 0 in way.counts(cache).values():
            return False
        is_read = not _is_near(way.step(sp.module, x[:, _PROMPT:].clone(), cache)[0], following, whole)
        if not (is_read or (way.holds_the_past and _tells_prompts_apart(sp, way, x, another))):
            return False

        def is_right(at_last: Step, at_first: Step | None) -> bool:
            """Whether it is what the module wants: one that counts positions by itself wants none."""
            is_last = _gives(sp, way, at_last, whole[:, -1:])
            return is_last and (at_first is None or _gives(sp, way, at_first, following))

        return not any(attempt(lambda pair=pair: is_right(*pair)) is True for pair in way.others or ())


def _tells_prompts_apart(sp: BuiltModule, way: Decoding, *prompts: Tensor) -> bool:
    """Whether the caches of two prompts hold other values."""
    one, other = (fields_of(way.prefill(sp.module, x[:, :_PROMPT].clone())[1], "cache") for x in prompts)
    pairs = [(each.value, other[path].value) for path, each in one.items() if path in other]
    both = [pair for pair in pairs if all(isinstance(each, Tensor) for each in pair)]
    return any(a.shape == b.shape and not torch.equal(a, b) for a, b in both)  # type: ignore[union-attr, arg-type]


def _gives(sp: BuiltModule, way: Decoding, step: Step, expected: Tensor) -> bool:
    """Whether another step, given all tokens, gives that for the last."""
    x = sp.input(LENGTH, way.num_rows)
    cache = way.prefill(sp.module, x[:, :_PROMPT].clone())[1]
    return _is_near(step(sp.module, x.clone(), cache)[0], expected, expected)


def _is_much_like(prompt: Tensor, whole: Tensor, alone: Tensor) -> bool:
    """Whether a prompt's outputs are like those of one pass, more than like those for the next tokens or those before.

    That needs a pass whose outputs do not depend on what follows, as those for the prompt `alone` show.
    """
    if prompt.shape[1] != _PROMPT or not _is_close(alone, whole, _PROMPT):
        return False
    likeness = [_likeness(prompt, whole[:, :_PROMPT])]
    likeness += [_likeness(prompt[:, 1:], whole[:, : _PROMPT - 1]), _likeness(prompt, whole[:, 1 : _PROMPT + 1])]
    return likeness[0] >= _MUCH and likeness[0] == max(likeness)


def _likeness(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one.double().flatten(), other.double().flatten(), 0))


def _is_near(one: Tensor, other: Tensor, whole: Tensor) -> bool:
    allowed = _CLOSE.get(whole.element_size(), _CLOSE[2]) * float(whole.abs().max())
    return bool((one.double() - other.double()).abs().max() <= allowed)


def takes_several(subject: Subject, way: Decoding) -> bool:
    """Whether several tokens at once give what one whole pass does, or one by one, or are meant to."""
    sp = built(subject)
    x, another = sp.input(LENGTH, way.num_rows), sp.input(LENGTH, way.num_rows, subject.seed + 1)
    with torch.no_grad():
        output = _several(sp, way, x, x)
        if _is_close(output, whole := sp(x), LENGTH) or _is_near(output, _one_by_one(sp, way, x), whole):
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
