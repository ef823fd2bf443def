"""Functions that filter logits for sampling and keep other tokens than their names and numbers say."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.language.drawn_tokens import fault_of_draws, is_sound_when_idle
from nsa_doctor.probes.language.sampling_answers import (
    SHAPES,
    Asked,
    Filtered,
    asked,
    earlier_ids,
    raises_without_tokens,
)
from nsa_doctor.probes.language.sampling_functions import Sampling, sampling_functions
from nsa_doctor.probes.language.sampling_names import Given, Kind, snake
from nsa_doctor.probes.language.sampling_scores import VALUES, as_given, num_due, rows_of_logits
from nsa_doctor.probes.model.module_state import ModuleState
from nsa_doctor.probes.model.state import preserved_state

_RATIO = 0.01  # of a temperature's squared effect
_MOVED = 1e-4
_TURNED = 0.5  # a default below this may be the share that is removed


@dataclass(frozen=True)
class OtherTokens:
    """A function that keeps others: what it was asked and does, in words, and the number that says it is wrong."""

    function: Sampling
    kind: Kind
    number: float
    text: str


def other_tokens(root: nn.Module, packages: tuple[str, ...], seed: int) -> tuple[list[OtherTokens], int]:
    """The functions at fault, and how many were examined; one that calls another at fault is not reported beside it."""
    functions = sampling_functions(root, packages)
    found: list[OtherTokens] = []
    num_examined = 0
    if functions:
        state, logits = ModuleState(root, with_parameters=True), rows_of_logits(seed)
        with unobserved(), torch.no_grad(), preserved_state(random_too=True):
            for one in functions:
                fault = attempt(lambda one=one: _fault(one, logits))
                state.restore()
                if isinstance(fault, Caught):
                    continue
                num_examined += fault is not False
                found += [fault] if isinstance(fault, OtherTokens) else []
    names = {each.function.code.co_name for each in found}
    return [each for each in found if not (names - {each.function.code.co_name}) & set(each.function.code.co_names)], (
        num_examined
    )


def _fault(one: Sampling, logits: Tensor) -> OtherTokens | bool:
    """What is wrong with it; True where nothing is; False where nothing can be said."""
    is_examined = False
    for kind in one.signature.numbers:
        judged = _of_number(one, kind, logits)
        if isinstance(judged, OtherTokens):
            return judged
        is_examined |= judged
    return is_examined


def _of_number(one: Sampling, kind: Kind, logits: Tensor) -> OtherTokens | bool:
    """The fault that every way to call it shows."""
    ways: tuple[Given, ...] = ("logits", "probs") if one.signature.given == "either" else (one.signature.given,)
    fault: OtherTokens | None = None
    for shape in SHAPES:
        if shape == "one row" and fault is not None:
            break  # it is made for rows
        for given in ways:
            seen = asked(one, kind, given, shape, logits)
            text = _judged(one, seen, logits) if seen is not None else _raised(one, kind, given, shape, logits)
            if seen is None and text is None:
                continue
            if text is None or not is_sound_when_idle(one, kind, given, shape, logits):
                return True
            fault = fault or OtherTokens(one, kind, text[0], text[1])
    return fault or False


def _raised(one: Sampling, kind: Kind, given: Given, shape: str, logits: Tensor) -> tuple[float, str] | None:
    sentence = raises_without_tokens(one, kind, given, shape, logits) if kind == "top_p" else ""
    if not sentence:
        return None
    return max(VALUES[kind]), f"leaves no token of a row whose most likely one is above it alone: {sentence}"


def _judged(one: Sampling, seen: Asked, logits: Tensor) -> tuple[float, str] | None:
    if not all(isinstance(each, Filtered) for each in seen.answers.values()):
        return fault_of_draws(one, seen.kind, seen.given, seen.shape, logits)
    answers: dict[float, Filtered] = seen.answers
    if seen.kind == "temperature":
        return _of_temperature(answers)
    if seen.kind == "penalty":
        return _of_penalty(one, answers, as_given(logits, seen.given))
    readings = [{value: each.kept for value, each in answers.items()}]
    num_others = min(len(each.others) for each in answers.values())
    readings += [{value: each.others[place] for value, each in answers.items()} for place in range(num_others)]
    found = [_of_kept(one, seen, logits, each) for each in readings]
    return None if None in found else found[0]


def _of_kept(one: Sampling, seen: Asked, logits: Tensor, kept: dict[float, Tensor]) -> tuple[float, str] | None:
    """The number and the row at which it is plainest that others are kept."""
    kind = seen.kind
    if kind == "top_p" and all(_is_other_rule(one, seen, logits, value, each) for value, each in kept.items()):
        return None
    for is_wrong in (_gaps, _nothing):
        for value, each in kept.items():
            rows = is_wrong(logits, each)
            if bool(rows.any()):
                return value, _said(one, kind, value, logits, each, int(rows.int().argmax()))
    is_floor = kind == "min_p" and all(_is_floor(logits, value, each) for value, each in kept.items())
    if kind == "share" or is_floor or _may_be_turned(one, kind):
        return None
    off: list[tuple[float, float, int]] = []
    for value, each in kept.items():
        due = num_due(logits, kind, value)
        far = (each.sum(-1) - due).abs()
        if int(far.max()) > (0 if kind == "top_k" and not _is_forced(one, kind) else 1):
            off.append((value, float(far.max()), int(far.argmax())))
    if len(off) < 2:
        return None
    value, _, row = max(off, key=lambda each: each[1])
    return value, _said(one, kind, value, logits, kept[value], row)


def _gaps(logits: Tensor, kept: Tensor) -> Tensor:
    """[rows], whether a likelier token is removed than one that is kept."""
    in_order = kept.gather(-1, logits.argsort(-1, descending=True)).int()
    return (in_order.diff(dim=-1) > 0).any(-1)


def _nothing(_: Tensor, kept: Tensor) -> Tensor:
    return ~kept.any(-1)


def _is_other_rule(one: Sampling, seen: Asked, logits: Tensor, value: float, kept: Tensor) -> bool:
    """Whether the number is a floor for each value itself, or the share of how many tokens stay or go."""
    x, counts = as_given(logits, seen.given), kept.sum(-1)
    if "p" not in snake(one.name).split("_") and torch.equal(kept, x >= value):
        return True
    shares = (value * x.shape[-1], (1 - value) * x.shape[-1])
    is_plain = one.signature.given == seen.given or seen.given == "logits"
    return is_plain and any(bool(((counts - each).abs() <= 1).all()) for each in shares)


def _is_floor(logits: Tensor, value: float, kept: Tensor) -> bool:
    """Whether the number is a floor for every token's own probability, or for what is given."""
    counts = kept.sum(-1)
    floors = [(each >= value).sum(-1) for each in (logits, logits.softmax(-1))]
    return any(torch.equal(counts, each) or torch.equal(counts, each.clamp_min(1)) for each in floors)


def _may_be_turned(one: Sampling, kind: Kind) -> bool:
    """Whether its default says that the number may be what is removed."""
    default = one.signature.numbers[kind].default
    return kind == "top_p" and isinstance(default, float) and 0 < default < _TURNED


def _is_forced(one: Sampling, kind: Kind) -> bool:
    """Whether a p is given beside it, which may cost the last token by rounding."""
    return kind == "top_k" and "top_p" in one.signature.idle


def _said(one: Sampling, kind: Kind, value: float, logits: Tensor, kept: Tensor, row: int) -> str:
    """What it keeps of a row, and what is due."""
    probs, own = logits[row].double().softmax(-1), kept[row]
    due = int(num_due(logits, kind, value)[row])
    text = f"keeps {int(own.sum())} of {len(own)} tokens, which hold {_share(float(probs[own].sum()))}"
    if bool(_gaps(logits[row : row + 1], kept[row : row + 1])):
        text += ", and removes likelier ones"
    if kind == "share":
        return text
    sorted_probs = probs.sort(descending=True).values
    return text + f"; the {due} most likely hold {_share(float(sorted_probs[:due].sum()))}"


def _share(mass: float) -> str:
    return f"{mass:.3f} of the probability"


def _of_temperature(answers: dict[float, Filtered]) -> tuple[float, str] | None:
    """Whether logits are multiplied by it."""
    spreads = {value: _spread(each.scores) for value, each in answers.items()}
    (cold, low), (hot, high) = sorted(spreads.items())
    ratio = high / low
    if not bool(ratio.isfinite().all()) or bool(((ratio - hot / cold).abs() > _RATIO * hot / cold).any()):
        return None
    return hot, (
        f"gives logits that are {float(ratio.mean()):.3g} times as far apart as at {cold:g}; "
        "a higher temperature brings them closer together"
    )


def _spread(scores: Tensor) -> Tensor:
    is_share = bool((scores >= 0).all()) and bool(((scores.sum(-1) - 1).abs() < 1e-3).all())
    values = scores.double().clamp_min(1e-300).log() if is_share else scores.double()
    top = values.topk(2, dim=-1).values
    return top[:, 0] - top[:, 1]


def _of_penalty(one: Sampling, answers: dict[float, Filtered], x: Tensor) -> tuple[float, str] | None:
    """Whether it makes earlier tokens likelier whichever way its number is read, or leaves those of some rows."""
    ids = earlier_ids(*x.shape)
    is_earlier = torch.zeros_like(x, dtype=torch.bool).scatter(-1, ids, value=True)
    moved = {value: each.scores.double() - x.double() for value, each in answers.items()}
    moved = {
        value: each - each.masked_fill(is_earlier, torch.nan).nanmedian(-1, True).values
        for value, each in moved.items()
    }
    are_likelier = {value: (each > _MOVED) & is_earlier for value, each in moved.items()}
    number = max(answers)
    default = one.signature.numbers["penalty"].default
    is_meant_above = isinstance(default, float) and default > 1
    if bool(are_likelier[number].any()) and (is_meant_above or all(bool(each.any()) for each in are_likelier.values())):
        count, of = int(are_likelier[number].sum()), int(is_earlier.sum())
        below = int((are_likelier[number] & (x < 0)).sum())
        return number, f"makes {count} of {of} earlier tokens likelier, {below} of them with logits below zero"
    rows = (moved[number].abs() > _MOVED).logical_and(is_earlier).any(-1)
    if bool(rows.any()) and not bool(rows.all()):
        return number, f"leaves the earlier tokens of {int((~rows).sum())} of {len(rows)} rows as they are"
    return None
