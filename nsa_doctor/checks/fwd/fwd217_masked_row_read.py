"""FWD217 masked-row-read

Detects: a query all of whose keys are masked that gets their average, and an output that depends on it.
Matters: a softmax over equal scores is an average over everything that was to be hidden, the future too.
Fix: fill with finfo.min, softmax, then fill rows that see no key with zero.

Example:
    # faulty
    weights = scores.masked_fill(~seen, -1e9).softmax(-1)
    # correct
    least = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~seen, least).softmax(-1) * seen.any(-1, keepdim=True)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.score_watch import MASKED, Softmax, softmaxes
from nsa_doctor.probes.model.built_module import comparable_module, require_finite
from nsa_doctor.probes.numerics.compare import departure
from nsa_doctor.subject.contract import Subject

_LENGTH, _MOST_SOFTMAXES = 61, 32
_ROUNDINGS = 1e4


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    length = min(_LENGTH, subject.max_length)
    x = sp.input(length)
    found, output = softmaxes(sp, x)
    require_finite(output, length)
    floor = torch.full(output.shape[:2], _ROUNDINGS * torch.finfo(output.dtype).eps * float(output.abs().max()))
    reported: set[str] = set()
    for index, each in enumerate(found[:_MOST_SOFTMAXES]):
        hidden = _hidden(each)
        if not bool(hidden.any()) or each.place.line_text in reported:
            continue
        reported.add(each.place.line_text)
        zeroed = softmaxes(sp, x, lambda at, scores, weights, index=index: _without(at == index, scores, weights))[1]
        changed = departure(zeroed, output, floor.to(output.device))
        if changed is not None:
            yield Finding(
                message=f"{int(hidden.sum())} of {hidden.numel()} rows of a softmax over {each.scores.shape[-1]} keys "
                f"have every key masked and average them all: with zeros in place of that {changed.text} at S={length}",
                where=each.place,
                evidence={"length": length, "rows": int(hidden.sum()), "first token": changed.first_token},
                repro=command_for(subject, "FWD217"),
            )


def _hidden(each: Softmax) -> Tensor:
    """Rows with weights though no key may be seen."""
    return (each.scores.amax(-1) <= MASKED) & (each.weights.amax(-1) > 0)


def _without(is_asked: bool, scores: Tensor, weights: Tensor) -> Tensor | None:
    return weights.masked_fill((scores.amax(-1) <= MASKED)[..., None], 0.0) if is_asked else None


def planted(subject: Subject) -> Subject:
    def averages_what_is_hidden(module: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = subject.forward(module, x)
        t = torch.arange(y.shape[1], device=y.device)
        seen = (t[:, None] // 8 > t // 8) & (t[:, None] % 8 > 3)
        return y + (y @ y.mT).masked_fill(~seen, -1e9).softmax(-1) @ y

    return replace(subject, forward=averages_what_is_hidden)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD206", "NAN101"),
    explained_by=("FWD201", "FWD202"),
    priority=455,
)
