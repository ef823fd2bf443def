"""What checks of gradients do: build the subject in its modes, at the lengths its profile asks for."""

from collections.abc import Callable, Iterator, Sequence

import torch

from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.gradients.derivative import has_steps
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe
from nsa_doctor.probes.gradients.length_dependent import length_that_loses_more
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.inputs import arrangements_to_try, values_to_try, with_values
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

Make = Callable[[int], DerivativeProbe]

_LENGTHS = {"smoke": (37,), "quick": (5, 37, 130), "full": (1, 2, 5, 37, 65, 130, 257, 521)}
_LENGTH_IN_TRAINING = 37
_LENGTH_OF_VALUES, _NEAR_STEPS = 19, "small"  # which many a step of a ReLU lies near to
_LONGEST_WITH_NEIGHBOUR = 37
_SHORTER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)


def benches(subject: Subject, only_one_length: bool = False) -> Iterator[tuple[Mode, int, Make]]:
    """(mode, length, what makes a bench of a length in that mode): eval mode at each length, then training mode at one.

    A longer one comes after them where a forward pass shows that a gradient gets lost in it on a further line. Training
    mode is left out of the shortest profile, and where two runs of it differ whatever the seed.
    """
    lengths = [length for length in _LENGTHS[subject.profile] if length <= subject.max_length] or [subject.max_length]
    if only_one_length:
        lengths = [min(_LENGTH_IN_TRAINING, subject.max_length)]
    evaluated: Mode = "train" if "eval" not in subject.modes and "train" in subject.modes else "eval"
    wide = _differentiable(subject, evaluated, lengths)
    for length in lengths:
        yield evaluated, length, _maker(wide)
    if subject.profile == "quick" and lengths and not only_one_length:
        longer = length_that_loses_more(built(subject, mode=evaluated), lengths[-1])
        if longer is not None:
            yield evaluated, longer, _maker(wide)
    if evaluated == "eval" and subject.profile != "smoke":
        yield from training_bench(subject, wide.dtype)


def training_bench(subject: Subject, dtype: str) -> Iterator[tuple[Mode, int, Make]]:
    """(mode, length, what makes a bench) in training mode, where it has that and two runs of it do not differ."""
    if "train" in subject.modes:
        make = _maker(built(subject, dtype=dtype, mode="train"))
        length = min(_LENGTH_IN_TRAINING, subject.max_length)
        if _is_repeatable(make, length):
            yield "train", length, make


def valued_benches(subject: Subject) -> Iterator[tuple[str, Mode, int, Make]]:
    """(kind, mode, length, what makes a bench) of kinds of values that ordinary input is not of, at a short length."""
    mode: Mode = "eval" if "eval" in subject.modes else "train"
    length = min(_LENGTH_OF_VALUES, subject.max_length)
    for kind in (*values_to_try(subject), *arrangements_to_try(subject)):
        if kind != _NEAR_STEPS:
            yield kind, mode, length, _maker(_differentiable(with_values(subject, kind), mode, [length]))


def shortest(make: Make, length: int, is_wrong: Callable[[DerivativeProbe], bool]) -> tuple[int, int | None]:
    """The least of some lengths up to `length` at which the bench is wrong, and the one before, at which it is not."""
    right = None
    for shorter in _SHORTER:
        if shorter >= length:
            break
        if is_wrong(make(shorter)):
            return shorter, right
        right = shorter
    return length, right


def distinct_texts(first: float, second: float) -> tuple[str, str]:
    """Both with three digits, or as many as it takes to tell them apart."""
    for digits in range(3, 17):
        texts = f"{first:.{digits}g}", f"{second:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(first), repr(second)


def _maker(made: BuiltModule) -> Make:
    def make(length: int) -> DerivativeProbe:
        rows = 2 if length <= _LONGEST_WITH_NEIGHBOUR and made.subject.profile != "smoke" else 1
        return DerivativeProbe(made, made.input(length, batch=rows))

    return make


def _is_finite(made: BuiltModule, length: int) -> bool:
    """Whether all gradients of one pass are; what raises there is for the checks to tell."""
    done = attempt(lambda: forward_backward(made, made.input(length)))
    return isinstance(done, Caught) or all(bool(isfinite(each).all()) for each in done.gradients.values())


def _is_repeatable(make: Make, length: int) -> bool:
    try:
        make(length).differentiate(0)
    except NotComparableError:
        return False
    return True


def _differentiable(subject: Subject, mode: Mode, lengths: Sequence[int]) -> BuiltModule:
    """In float64 where it runs in it and its gradients are as finite there as in its own dtype."""
    made = comparable_module(subject, mode=mode)
    if made.dtype != subject.dtype and not all(_is_finite(made, length) for length in lengths[:1]):
        own = built(subject, mode=mode)
        made = own if all(_is_finite(own, length) for length in lengths[:1]) else made
    if not has_steps(getattr(torch, made.dtype)):
        raise NotComparableError(f"the subject runs in {made.dtype} alone, which leaves no room for a step")
    return made
