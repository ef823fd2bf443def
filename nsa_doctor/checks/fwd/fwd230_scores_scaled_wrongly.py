"""FWD230 scores-scaled-wrongly

Detects: scores of attention that two lines multiply by D^-0.5 each, D being the channels of a head, as a call does that
scales by itself; scores that are multiplied by D^0.5; and scores that nothing scales in a module that holds D^-0.5.
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

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.score_scale import Scores, scores_of
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 19
_LEAST_CHANNELS = 8  # with fewer, halves and quarters mean other things
_ALIKE = 1e-4  # of two factors


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    found = [each for each in scores_of(sp, sp.input(min(_LENGTH, subject.max_length))) if each.size >= _LEAST_CHANNELS]
    if not found:
        raise NotApplicableError("no softmax of products of queries and keys was seen, whose scale is known")
    said = [(scores, what) for scores in found if (what := _wrong(scores, sp.module)) is not None]
    for scores, (message, place) in said[:1]:
        others = sum(what[1] == place for _, what in said) - 1
        yield Finding(
            message=message + (f"; so are those of {others} more" if others else ""),
            where=in_subject(place, sp.module),
            evidence={"channels": scores.size, "factor": scores.total},
            repro=command_for(subject, "FWD230"),
        )


def _wrong(scores: Scores, root: nn.Module) -> tuple[str, Place] | None:
    """What is wrong with how these scores are scaled, and where."""
    size, total, usual = scores.size, scores.total, scores.size**-0.5
    times = f"scores of queries and keys of {size} channels are multiplied by"
    twice = [factor for factor in scores.factors if _is(factor.value, usual)]
    if len(twice) > 1 and _is(total, usual**2):
        lines = " and ".join(str(factor.place.line) for factor in twice[:2])
        return f"{times} {usual:.4g} twice, in lines {lines}: by {total:.4g} in all", twice[0].place
    if scores.factors and _is(total, 1 / usual):
        return f"{times} {total:.4g}, their square root, which is to divide them", scores.factors[0].place
    name = "" if scores.factors else _held(root, scores.place, usual)
    if name:
        return f"{times} nothing, though {scores.place.module_class} holds {name} = {usual:.4g}", scores.place
    return None


def _held(root: nn.Module, place: Place, usual: float) -> str:
    """The attribute of the module there that is the usual factor and is named after scaling; empty for none."""
    module = root.get_submodule(place.module) if place.module_class else root
    held = {**vars(module), **dict(module.named_buffers(recurse=False))}
    for name, value in held.items():
        number = float(value) if isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1) else 0.0
        if "scal" in name and (_is(number, usual) or _is(number, 1 / usual)):
            return name
    return ""


def _is(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_ALIKE)


def planted(subject: Subject) -> Subject:
    def scales_twice(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        q = x.flatten(2)
        q = q * q.shape[-1] ** -0.5
        return output + 0 * torch.nn.functional.scaled_dot_product_attention(q, x.flatten(2), x.flatten(2))

    return replace(subject, forward=scales_twice)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))
