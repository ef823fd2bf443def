"""FWD230 scores-scaled-wrongly

Detects: scores of attention that two lines multiply by D^-0.5 each, D being the channels of a head, or one line and the
call in it that scales by itself; scores that are multiplied by D^0.5, or by a number below zero; and scores that are
multiplied by S^-0.5 in place of D^-0.5, S being the number of tokens, at two lengths. Scores that nothing scales, and
those that are divided by the root of the channels of all heads, are a note.
Matters: a softmax of scores that are too small is nearly even and reads everything; of scores that are too large it
reads one key, and lets no gradient through.
Fix: scale once, by the channels: hand `scale=1.0` to what scales by itself, or leave out the line before.

Example:
    # faulty
    q = q * self.scale
    y = scaled_dot_product_attention(q, k, v)
    # correct
    y = scaled_dot_product_attention(q, k, v, scale=self.scale)
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.scaled import scaled_by_length, scaled_by_width, unscaled, wrongly_scaled
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.score_scale import Scores, scores_of
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTHS = 19, 33
_LEAST_CHANNELS = 8  # with fewer, halves and quarters mean other things


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject)
    found = _scores(sp, _LENGTHS[0])
    if not found:
        raise NotApplicableError("no softmax of products of queries and keys was seen, whose scale is known")
    longer = cache(lambda: _scores(sp, _LENGTHS[1]))
    judged = [(scores, wrongly_scaled(scores) or scaled_by_length(scores, longer)) for scores in found]
    said = [(scores, what) for scores, what in judged if what is not None]
    bare = [each for each in found if not each.factors]
    if bare and not said:
        yield Note(message=unscaled(bare[0], sp.module), where=in_subject(bare[0].place, sp.module))
    wide = [what for scores in found if (what := scaled_by_width(scores)) is not None]
    for message, place in wide[:1] if not said else ():
        yield Note(message=message, where=in_subject(place, sp.module))
    for scores, (message, place) in said[:1]:
        others = sum(what[1] == place for _, what in said) - 1
        yield Finding(
            message=message + (f"; so are those of {others} more" if others else ""),
            where=in_subject(place, sp.module),
            evidence={"channels": scores.size, "factor": scores.total},
            repro=command_for(subject, "FWD230"),
        )


def _scores(sp: BuiltModule, length: int) -> list[Scores]:
    given = sp.input(min(length, sp.subject.max_length))
    return [each for each in scores_of(sp, given) if each.size >= _LEAST_CHANNELS]


def planted(subject: Subject) -> Subject:
    def scales_twice(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        q = x.flatten(2)
        q = q * q.shape[-1] ** -0.5
        return output + 0 * torch.nn.functional.scaled_dot_product_attention(q, x.flatten(2), x.flatten(2))

    return replace(subject, forward=scales_twice)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))
