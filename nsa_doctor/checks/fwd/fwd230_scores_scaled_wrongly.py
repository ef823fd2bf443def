"""FWD230 scores-scaled-wrongly

Detects: scores of attention that two lines multiply by D^-0.5 each, D being the channels of a head, as a call does that
scales by itself; and scores that are multiplied by D^0.5. Scores that nothing scales are a note.
Matters: a softmax of scores that are too small is nearly even and reads everything; of scores that are too large it
reads one key, and lets no gradient through.
Fix: scale once: hand `scale=1.0` to what scales by itself, or leave out the line before.

Example:
    # faulty
    q = q * self.scale
    y = scaled_dot_product_attention(q, k, v)
    # correct
    y = scaled_dot_product_attention(q, k, v, scale=self.scale)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.scaled import unscaled, wrongly_scaled
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.score_scale import scores_of
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 19
_LEAST_CHANNELS = 8  # with fewer, halves and quarters mean other things


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject)
    found = [each for each in scores_of(sp, sp.input(min(_LENGTH, subject.max_length))) if each.size >= _LEAST_CHANNELS]
    if not found:
        raise NotApplicableError("no softmax of products of queries and keys was seen, whose scale is known")
    said = [(scores, what) for scores in found if (what := wrongly_scaled(scores)) is not None]
    bare = [each for each in found if not each.factors]
    if bare and not said:
        yield Note(message=unscaled(bare[0], sp.module), where=in_subject(bare[0].place, sp.module))
    for scores, (message, place) in said[:1]:
        others = sum(what[1] == place for _, what in said) - 1
        yield Finding(
            message=message + (f"; so are those of {others} more" if others else ""),
            where=in_subject(place, sp.module),
            evidence={"channels": scores.size, "factor": scores.total},
            repro=command_for(subject, "FWD230"),
        )


def planted(subject: Subject) -> Subject:
    def scales_twice(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        q = x.flatten(2)
        q = q * q.shape[-1] ** -0.5
        return output + 0 * torch.nn.functional.scaled_dot_product_attention(q, x.flatten(2), x.flatten(2))

    return replace(subject, forward=scales_twice)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))
