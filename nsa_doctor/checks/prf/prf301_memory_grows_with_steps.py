"""PRF301 memory-grows-with-steps

Detects: memory that identical steps allocate and that is still held after each of them, more with every step.
Matters: the run is fine for an hour and out of memory after a night; a held loss keeps its whole graph.
Fix: drop what the line named allocates: store `loss.item()` or a detached copy of bounded number, never the tensor of
each step; bound the cache, and do not key it by a tensor.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.check import Check
from nsa_doctor.finding import Finding
from nsa_doctor.measurement import Mode
from nsa_doctor.probes.steps import Step, Steps, grows_steadily
from nsa_doctor.repro import again
from nsa_doctor.subject import Subject
from nsa_doctor.wording import short_bytes

_LENGTH = 17
_WARM_UP = 2  # lazy tables are built
_FIRST = 6
_MANY = 100  # a cache of fewer entries is full by then: it has dropped what the first steps left
_LAST = 4
_NUMBER_BYTES, _NUMBERS = 8, 16


def run(subject: Subject) -> Iterator[Finding]:
    ways: list[tuple[Mode, bool]] = [("train", False), ("no_grad", False)]
    ways += [("train", True)] if subject.train_step is not None else []
    for mode, is_loop in ways:
        if mode not in subject.modes:
            continue
        steps = Steps(subject, min(_LENGTH, subject.max_length), mode, is_loop=is_loop)
        first = steps.take(_FIRST)[_WARM_UP:]
        if not _grows(first, steps):
            continue
        last = steps.go_on(_MANY, _LAST)
        if _grows(last, steps) and last[-1].held_bytes > first[-1].held_bytes:
            yield _finding(steps, first)
            return


def _finding(steps: Steps, first: list[Step]) -> Finding:
    begin, end = first[0], first[-1]
    per_step = (end.held_bytes - begin.held_bytes) / (len(first) - 1)
    grown = {place: held - begin.held_by_place.get(place, 0) for place, held in end.held_by_place.items()}
    where, attribute = max(grown, key=lambda place: grown[place]), ""
    if (holder := steps.holder()) is not None:
        owner, attribute = holder
        where = replace(where, module=owner.module, module_class=owner.module_class)
    elif steps.is_loop:
        where, attribute = steps.loop_place(), steps.loop_holder()
    way = "in the training loop" if steps.is_loop else steps.mode
    return Finding(
        message=f"each identical step leaves {short_bytes(round(per_step))} more behind"
        f"{f', held in {attribute}' if attribute else ''}: {short_bytes(begin.held_bytes)} after {_WARM_UP + 1} steps, "
        f"{short_bytes(end.held_bytes)} after {_FIRST}, and on and on for {_FIRST + _MANY + _LAST} ({way})",
        where=where,
        evidence={
            "bytes_per_step": per_step,
            "num_steps": _FIRST + _MANY + _LAST,
            "held_in": attribute,
            "num_places": sum(more > 0 for more in grown.values()),
            "mode": way,
        },
        repro=again(steps.subject, "PRF301"),
    )


def planted(subject: Subject) -> Subject:
    kept: list[Tensor] = []

    def keeps_every_output(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x) * 1
        kept.append(output)
        return output

    return replace(subject, forward=keeps_every_output)


def _grows(taken: list[Step], steps: Steps) -> bool:
    held = [step.held_bytes for step in taken]
    # A loop may well keep a record: some numbers a step, and one of each parameter.
    record = _NUMBER_BYTES * (_NUMBERS + steps.num_parameters) if steps.is_loop else 0
    return grows_steadily(held) and held[-1] - held[0] > record * (len(held) - 1)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "HNG101"), explained_by=("GRD403",)
)
