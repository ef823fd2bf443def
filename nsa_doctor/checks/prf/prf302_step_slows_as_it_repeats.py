"""PRF302 step-slows-as-it-repeats

Detects: a step that runs more operations, or produces more bytes, each time it is repeated on the same input.
Matters: tokens per second fall all night long, and no single step is to blame.
Fix: look at the line named: something it walks over or joins is added to by every step, and never cleared.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.check import Check
from nsa_doctor.finding import Finding
from nsa_doctor.measurement import Mode
from nsa_doctor.probes.steps import Step, Steps, grows_steadily
from nsa_doctor.repro import again
from nsa_doctor.subject import Subject

_LENGTH = 17
_WARM_UP = 2  # lazy tables are built
_FIRST = 6
_MANY = 60  # what is bounded has reached its bound by then
_LAST = 4


def run(subject: Subject) -> Iterator[Finding]:
    modes: tuple[Mode, ...] = ("train", "no_grad")
    for mode in modes:
        if mode not in subject.modes:
            continue
        steps = Steps(subject, min(_LENGTH, subject.max_length), mode)
        first = steps.take(_FIRST)[_WARM_UP:]
        if not _slows(first):
            continue
        last = steps.go_on(_MANY, _LAST)
        if _slows(last):
            yield _finding(subject, first[0], last[-1], mode)
            return


def _finding(subject: Subject, first: Step, last: Step, mode: Mode) -> Finding:
    grown = {place: made - first.made_by_place.get(place, 0) for place, made in last.made_by_place.items()}
    worst = max(grown, key=lambda place: grown[place])
    return Finding(
        message=f"the same step does more each time: step {_FIRST + _MANY + _LAST} runs {last.num_operations:,} "
        f"operations that produce {last.made_bytes:,} bytes, step {_WARM_UP + 1} ran {first.num_operations:,} that "
        f"produced {first.made_bytes:,} ({mode})",
        where=worst,
        evidence={
            "num_steps": _FIRST + _MANY + _LAST,
            "operations_first": first.num_operations,
            "operations_last": last.num_operations,
            "bytes_first": first.made_bytes,
            "bytes_last": last.made_bytes,
            "mode": mode,
        },
        repro=again(subject, "PRF302"),
    )


def planted(subject: Subject) -> Subject:
    past: list[Tensor] = []

    def joins_all_that_was(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        past.append(output.detach().mean())
        return output + 0 * torch.stack(past).mean()

    return replace(subject, forward=joins_all_that_was)


def _slows(taken: list[Step]) -> bool:
    return any(grows_steadily([getattr(step, name) for step in taken]) for name in ("num_operations", "made_bytes"))


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "HNG101"), explained_by=("PRF301", "GRD403")
)
