"""PRF101 loop-per-token

Detects: a Python loop over tokens: operations started one by one, at least three for every four further tokens, whose
steps do not need each other's results (a note where a recurrence starts 16 times as many beside them, or where there
are channels for every pair of tokens, so that a step has the work of a row of them); one over as many rounds as there
may be tokens; plain Python over their pairs.
Matters: every operation costs some microseconds to start, so that a device does nothing but wait for Python.
Fix: do the whole tile at once with a batched operation; a recurrence, whose steps need each other, is not reported.

Example:
    # faulty
    y = torch.cat([self.project(x[:, t : t + 1]) for t in range(S)], dim=1)
    # correct
    y = self.project(x)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.looping import (
    is_beside_a_recurrence,
    loop_of_plain_python,
    loop_to_a_limit,
    operations_of,
    per_further_token,
)
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.cost.pairs import keeps_pairs
from nsa_doctor.probes.cost.per_token import by_code, growing, sequential
from nsa_doctor.probes.cost.work import LineWork, Work, heaviest
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

# A loop that skips some tokens still starts most of its operations; one by tiles of two or more tokens stays below.
_LEAST_PER_TOKEN = 0.75


def run(subject: Subject) -> Iterator[Finding | Note]:
    for mode in ("train", "no_grad") if subject.profile == "full" else ("train",):
        if mode not in subject.modes:
            continue
        works, lines = growing(subject, mode, _rounds, _LEAST_PER_TOKEN, _needless)
        is_beside = bool(lines) and is_beside_a_recurrence(works, lines)
        for own in by_code(lines):
            worst, counts = heaviest(own), operations_of(works, own)
            if is_beside:
                yield Note(message=f"{_words(works, counts)}, beside a recurrence that starts more", where=worst.place)
                continue
            if keeps_pairs(built(subject)):
                yield Note(message=f"{_words(works, counts)}, each with the pairs of a token", where=worst.place)
                continue
            yield Finding(
                message=f"{_words(works, counts)}; the costliest line runs {_names(worst)} ({mode})",
                where=worst.place,
                evidence={
                    "operations_per_token": per_further_token(works, counts),
                    "length": works[-1].length,
                    "operations": counts[-1],
                    "operations_of_all_lines": works[-1].num_operations,
                    "num_lines": len(own),
                    "num_modules": len({line.place.module for line in own}),
                    "mode": mode,
                },
                repro=command_for(subject, "PRF101"),
            )
        others = () if lines else chain(loop_to_a_limit(subject, works, mode), loop_of_plain_python(subject))
        if (other := next(iter(others), None)) is not None:
            yield other
        if lines or other is not None:
            return


def _words(works: Sequence[Work], counts: Sequence[int]) -> str:
    return (
        f"a loop over tokens starts {per_further_token(works, counts):.3g} operations per token: "
        f"{counts[-1]:,} at S={works[-1].length}, {counts[0]:,} at S={works[0].length}"
    )


def planted(subject: Subject) -> Subject:
    def token_by_token(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        return torch.stack([token * 1 for token in output.unbind(1)], dim=1)

    return replace(subject, forward=token_by_token)


def _needless(works: Sequence[Work], lines: Sequence[LineWork]) -> list[LineWork]:
    needed = sequential(works[-2], works[-1]) if lines else set()
    return [line for line in lines if line.place not in needed]


def _rounds(line: LineWork) -> int:
    return max(line.sites.values(), default=0)


def _names(line: LineWork) -> str:
    return ", ".join(name for name, _ in line.operations.most_common(3))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD101", "FWD102", "HNG101"),
    explained_by=("HNG201",),
)
