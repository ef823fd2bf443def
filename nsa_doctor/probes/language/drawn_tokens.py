"""Functions that draw tokens, of others than their names and numbers say."""

from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.language.sampling_answers import SHAPES, Filtered, earlier_ids, read, whole
from nsa_doctor.probes.language.sampling_functions import Sampling
from nsa_doctor.probes.language.sampling_names import IDLE, Given, Kind
from nsa_doctor.probes.language.sampling_scores import SPREADS, VALUES, as_given, num_due
from nsa_doctor.probes.model.state import seed_everything

_NUM_ROWS, _DRAWS, _DRAWS_ALONE = len(SPREADS), 400, 80
_RARE = 20.0  # how often a token would be drawn that is never missing by chance
_CLEARLY = 0.05


def fault_of_draws(one: Sampling, kind: Kind, given: Given, shape: str, logits: Tensor) -> tuple[float, str] | None:
    """The number and the row at which other tokens are drawn, if any are."""
    logits = logits[:_NUM_ROWS]
    counts = {value: _counts(one, kind, value, given, shape, logits) for value in VALUES[kind]}
    if any(each is None for each in counts.values()):
        return None
    seen: dict[float, Tensor] = {value: each for value, each in counts.items() if each is not None}
    if kind == "temperature":
        return _of_temperature(logits, seen)
    if kind not in ("top_p", "top_k", "min_p") or not _varies(seen):
        return None
    off = []
    for value, count in seen.items():
        for row in range(len(logits)):
            text = _of_row(logits[row], count[row], kind, value)
            if text:
                off.append((value, text))
                break
    return off[0] if len(off) > 1 else None


def is_sound_when_idle(one: Sampling, kind: Kind, given: Given, shape: str, logits: Tensor) -> bool:
    """Whether all tokens are left where no number is to do anything: others than its defaults had to be given."""
    if not set(one.signature.idle) & {"top_p", "top_k", "min_p"} - {kind} or kind not in ("top_p", "top_k", "min_p"):
        return True
    seen = attempt(lambda: whole(one, kind, given, shape, logits))
    if isinstance(seen, Filtered):
        return any(int((~each).sum(-1).max()) <= 1 for each in (seen.kept, *seen.others))
    few = logits[:_NUM_ROWS]
    counts = _counts(one, kind, IDLE[kind], given, shape, few)
    return counts is not None and not any(map(_missing, few, counts))


def _missing(logits: Tensor, count: Tensor) -> bool:
    return bool(((logits.softmax(-1) * count.sum() > _RARE) & (count == 0)).any())


def _varies(counts: dict[float, Tensor]) -> bool:
    """Whether it draws at all, and does not take the likeliest."""
    return any(bool(((count > 0).sum(-1) > 1).any()) for count in counts.values())


def _of_row(logits: Tensor, count: Tensor, kind: Kind, value: float) -> str:
    due = int(num_due(logits[None], kind, value))
    order = logits.argsort(descending=True)
    probs, drawn = logits.double().softmax(-1)[order], count[order]
    slack = 0 if kind == "top_k" else 1
    outside = int(drawn[due + slack :].sum())
    if outside:
        return f"draws {outside} of {int(count.sum())} tokens from beside the {due} most likely"
    least = max(due - slack, 1)
    expected = probs[:due] / probs[:due].sum() * count.sum()
    missing = int(((expected[:least] > _RARE) & (drawn[:least] == 0)).sum())
    return f"draws {missing} of the {due} most likely tokens never in {int(count.sum())}" if missing else ""


def _of_temperature(logits: Tensor, counts: dict[float, Tensor]) -> tuple[float, str] | None:
    """Whether the likeliest is drawn clearly more often at the higher temperature, in every row where it can be."""
    best = logits.argmax(-1, keepdim=True)
    low, high = ((counts[value].gather(-1, best) / counts[value].sum(-1, keepdim=True))[:, 0] for value in (0.5, 2.0))
    if not bool((high >= low).all()) or not bool((high > low + 2 * _CLEARLY).any()):
        return None
    row = int((high - low).argmax())
    return 2.0, (
        f"draws the most likely token {float(high[row]):.0%} of the time, and {float(low[row]):.0%} at 0.5; "
        "a higher temperature draws it less often"
    )


def _counts(one: Sampling, kind: Kind, value: float, given: Given, shape: str, logits: Tensor) -> Tensor | None:
    """[rows, tokens], how often each is drawn; None where something else comes back."""
    times = _DRAWS_ALONE if shape == "one row" else _DRAWS
    number = int(value) if kind == "top_k" else value
    x, ids = as_given(logits, given), earlier_ids(*logits.shape)
    x, ids = x.repeat_interleave(times, 0), ids.repeat_interleave(times, 0)
    seed_everything(3)
    drawn: Any = attempt(lambda: _drawn(one, kind, number, shape, x, ids))
    if not isinstance(drawn, Tensor) or len(drawn) != len(x):
        return None
    one_hot = torch.nn.functional.one_hot(drawn, logits.shape[-1])
    return one_hot.unflatten(0, (len(logits), times)).sum(1)


def _drawn(one: Sampling, kind: Kind, number: float, shape: str, x: Tensor, ids: Tensor) -> Any:
    if shape != "one row":
        scores = SHAPES[shape](x).clone()
        return read(one.ask(scores, ids, {kind: number}), scores, SHAPES[shape](x))
    rows = [read(one.ask(row.clone(), own, {kind: number}), row, row) for row, own in zip(x, ids, strict=True)]
    return torch.cat([each for each in rows if isinstance(each, Tensor)])
