"""Sequences with caches of their own that one module decodes by turns, and what this changes of the steps of one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.compare import Departure, departure
from nsa_doctor.subject.contract import Subject


@dataclass(frozen=True)
class Decoding:
    """How one sequence is decoded: so many rows, and the sizes of its parts, the first as the prompt."""

    rows: int
    sizes: tuple[int, ...]


STEPS = 4
_PROMPT, _LONG_PROMPT = 5, 40
_ONE, _TWO, _THREE = (Decoding(rows, (_PROMPT, *[1] * STEPS)) for rows in (1, 2, 3))
BY_TURNS = ((_ONE, _TWO, _THREE), (_TWO, _TWO))
_BESIDE_OTHER_LENGTHS = (  # a step need not take chunks: of those that refuse them nothing is asked
    (_ONE, Decoding(1, (2, 16, 16, 16))),
    (_ONE, Decoding(1, (2, 32, 32, 32))),
    (_ONE, Decoding(1, (_LONG_PROMPT, 1, 1, 1))),
    (Decoding(1, (_LONG_PROMPT, *[1] * STEPS)), Decoding(1, (5, 16, 32, 1))),
    (Decoding(1, (_PROMPT, *[3] * STEPS)), Decoding(1, (4, *[2] * STEPS))),
)
_ROUNDINGS = 1e4  # as where two runs are followed to where they part


def departures(subject: Subject) -> Iterator[tuple[Decoding, tuple[Decoding, ...], Departure]]:
    """How the last step of a sequence departs from that of the sequence alone, and which were decoded by turns."""
    outputs: dict[Decoding, Tensor] = {}
    dtype = decoding_module(subject).dtype
    for together in (*BY_TURNS, *(() if subject.is_slow else _BESIDE_OTHER_LENGTHS)):
        if max(sum(each.sizes) for each in together) > subject.max_length:
            continue
        for own in dict.fromkeys(together) if together in BY_TURNS else together[:1]:
            try:
                if own not in outputs:
                    outputs[own] = _output(subject, dtype, (own,), own)
                alone, beside = outputs[own], _output(subject, dtype, together, own)
            except (SubjectFailedError, NotComparableError):
                if together in BY_TURNS:
                    raise
                continue
            scale = float(alone.abs().max()) * _ROUNDINGS * torch.finfo(alone.dtype).eps
            found = departure(beside, alone, torch.full(alone.shape[:2], scale, device=alone.device))
            if found is not None:
                yield own, together, found


def last_step(
    subject: Subject, dtype: str, together: Sequence[Decoding], own: Decoding
) -> tuple[BuiltModule, Callable[[], Tensor]]:
    """A module that has decoded these by turns, a part each, and the last step of the first one like `own`."""
    sp = built(subject, dtype=dtype)  # one that nothing was decoded with
    prefill, step, module = subject.prefill, subject.step, sp.module
    assert prefill is not None
    assert step is not None
    parts = [
        sp.input(sum(each.sizes), each.rows, seed).split(list(each.sizes), dim=1)
        for each, seed in zip(together, _seeds(subject, together), strict=True)
    ]
    first = together.index(own)
    with torch.no_grad():
        caches = [ask("prefill", lambda given=given: prefill(module, given[0].clone()), module)[1] for given in parts]
        for index in range(1, STEPS):
            for number, given in enumerate(parts):
                part, cache = given[index].clone(), caches[number]
                caches[number] = ask("step", lambda part=part, cache=cache: step(module, part, cache), module)[1]
    return sp, lambda: ask("step", lambda: step(module, parts[first][-1].clone(), caches[first]), module)[0]


def _output(subject: Subject, dtype: str, together: tuple[Decoding, ...], own: Decoding) -> Tensor:
    """What its last step gives; a refusal of other lengths than every step has is not observed."""
    is_ordinary = all(each in (_ONE, _TWO, _THREE) for each in together)
    with torch.no_grad(), nullcontext() if is_ordinary else unobserved():
        return last_step(subject, dtype, together, own)[1]()


def _seeds(subject: Subject, together: Sequence[Decoding]) -> list[int]:
    """Of as many rows always the same for the first such sequence, whatever is decoded beside it."""
    rows = [each.rows for each in together]
    return [subject.seed + n + len(BY_TURNS[0]) * number * (n in rows[:number]) for number, n in enumerate(rows)]
