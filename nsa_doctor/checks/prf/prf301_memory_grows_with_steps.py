"""PRF301 memory-grows-with-steps

Detects: memory that steps of the same few lengths allocate and that is still held after each, more with every step. A
    bounded container is none: it states its bound, or has dropped what the first steps left when the last are taken.
Matters: the run is fine for an hour and out of memory after a night; a held loss keeps its whole graph.
Fix: drop what the line named keeps, or allocates where no attribute holds it: store `loss.item()` or a detached copy of
bounded number, never the tensor of each step; bound the cache, and do not key it by a tensor.

Example:
    # faulty
    self.losses.append(loss)  # and its whole graph
    # correct
    self.losses.append(loss.item())
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_bytes
from nsa_doctor.probes.cost.step_costs import STEPS_OF_A_CYCLE, Step, Steps, grows_steadily, has_gone_on
from nsa_doctor.subject.contract import Subject

_NUMBER_BYTES, _NUMBERS = 8, 16


def run(subject: Subject) -> Iterator[Finding | Note]:
    ways: list[tuple[Mode, bool]] = [("train", False), ("no_grad", False)]
    ways += [("train", True)] if subject.train_step is not None else []
    for mode, is_loop in ways:
        if mode not in subject.modes:
            continue
        steps = Steps(subject, mode, is_loop=is_loop)
        if (grown := steps.grow(partial(_grows, steps), partial(_goes_on, steps))) is not None:
            yield _finding(steps, *grown)
            return


def _finding(steps: Steps, first: list[Step], last: list[Step]) -> Finding | Note:
    per_step = (last[-1].held_bytes - last[0].held_bytes) / (len(last) - 1) / STEPS_OF_A_CYCLE
    grown = {place: held - first[0].held_by_place.get(place, 0) for place, held in last[-1].held_by_place.items()}
    where, attribute = max(grown, key=lambda place: grown[place]), ""
    if (holder := steps.holder()) is not None:
        owner, attribute = holder
        where = steps.stored_at(owner, attribute, where)
    elif steps.is_loop:
        where, attribute = steps.loop_place(), steps.loop_holder()
    way = "in the training loop" if steps.is_loop else steps.mode
    held_in = f", held in {attribute}" if attribute else ""
    message = f"each step leaves {short_bytes(round(per_step))} more behind{held_in}, and still does after "
    message += f"{steps.num_steps:,} steps ({way})"
    if steps.may_be_trimmed():
        return Note(message=f"{message}, though its code takes out of it past some number", where=where)
    return Finding(
        message=message,
        where=where,
        evidence={
            "bytes_per_step": per_step,
            "num_steps": steps.num_steps,
            "held_in": attribute,
            "num_places": sum(more > 0 for more in grown.values()),
            "mode": way,
        },
        repro=command_for(steps.subject, "PRF301"),
    )


def planted(subject: Subject) -> Subject:
    kept: list[Tensor] = []

    def keeps_every_output(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x) * 1
        kept.append(output)
        return output

    return replace(subject, forward=keeps_every_output)


def _grows(steps: Steps, taken: list[Step]) -> bool:
    held = [step.held_bytes for step in taken]
    # A loop may well keep a record: some numbers a step, and one of each parameter.
    record = _NUMBER_BYTES * (_NUMBERS + steps.num_parameters) * STEPS_OF_A_CYCLE if steps.is_loop else 0
    return grows_steadily(held) and held[-1] - held[0] > record * (len(held) - 1)


def _goes_on(steps: Steps, first: list[Step], last: list[Step]) -> bool:
    return steps.left_for_good(first) or has_gone_on(lambda step: step.held_bytes, first, last)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "HNG101"), explained_by=("GRD403",)
)
