"""FWD222 output-not-the-callers

Detects: an output that a later call overwrites, because it lies in memory that the module keeps; and one that the
module keeps for itself, so that what the caller writes into it comes out of the next equal call.
Matters: two outputs that are compared, averaged or collected in a list are both the last one, and nothing raises.
Fix: return a tensor of its own: `copy_` into a kept buffer is for what stays inside, and a memo hands out clones.

Example:
    # faulty
    return self.space[:B].copy_(y)  # the next call writes there too
    # correct
    return y
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.step_output import output_written_by_a_step
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import memory_of
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.compare import baseline, departure
from nsa_doctor.probes.numerics.writes import later_write
from nsa_doctor.subject.contract import Subject

_LENGTH, _LONGER, _ROWS = 19, 37, 3
_MODES: tuple[Mode, ...] = ("no_grad", "eval", "train")


def run(subject: Subject) -> Iterator[Finding]:
    modes = [mode for mode in _MODES if mode in subject.modes]
    first = next((finding for mode in modes if (finding := _overwritten(subject, mode))), None)
    first = first or _overwritten_by_a_step(subject) or _kept(subject)
    yield from [first] if first else []


def _overwritten(subject: Subject, mode: Mode) -> Finding | None:
    """By a call on other rows of as many tokens, or of more."""
    sp = comparable_module(subject, mode=mode)
    with torch.set_grad_enabled(mode != "no_grad"):
        held = sp(_input(sp)).detach()
        for length in (_LENGTH, _LONGER):
            other = _input(sp, length, seed=subject.seed + 1)
            written = later_write(subject, sp.module, held, lambda other=other: sp(other))
            if written is not None:
                by = f" by {written.operation}" if written.operation else ""
                message = f"the output of a call is overwritten{by} in a later call at S={other.shape[1]} ({mode})"
                return _finding(sp, message, written.place)
    return None


def _overwritten_by_a_step(subject: Subject) -> Finding | None:
    """By the next step of decoding."""
    written = output_written_by_a_step(subject, _ROWS)
    if written is None:
        return None
    message = f"the output of a step is overwritten{written.operation and f' by {written.operation}'} in the next step"
    return _finding(decoding_module(subject), message, written.place)


def _kept(subject: Subject) -> Finding | None:
    """What a caller writes into an output, in the next equal call; a parameter or a table is the module's to show."""
    sp = comparable_module(subject)
    x = _input(sp)
    base = baseline(sp, x)
    expected, floor = base.output.clone(), base.floor.clone()  # what is kept may be what these are made of
    with torch.no_grad():
        output = sp(x)
        own = {memory_of(each) for each in (*sp.module.parameters(), *sp.module.buffers())}
        if memory_of(output) in own or isinstance(attempt(lambda: output.mul_(2).add_(1)), Caught):
            return None
        found = departure(sp(x), expected, floor)
    if found is None:
        return None
    message = f"what is written into an output comes out of the next equal call at S={x.shape[1]}: {found.text}"
    return _finding(sp, message, definition_place(sp.module))


def _input(sp: BuiltModule, length: int = _LENGTH, seed: int | None = None) -> Tensor:
    return sp.input(min(length, sp.subject.max_length), _ROWS, seed)


def _finding(sp: BuiltModule, message: str, place: Place) -> Finding:
    return Finding(message=message, where=place, evidence={"batch": _ROWS}, repro=command_for(sp.subject, "FWD222"))


def planted(subject: Subject) -> Subject:
    def returns_memory_that_it_keeps(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        kept = vars(module).setdefault("outputs_kept", {})
        space = kept.setdefault((output.shape, output.dtype), output.detach().clone())
        space.copy_(output.detach())
        return output if output.requires_grad else space

    return replace(subject, forward=returns_memory_that_it_keeps)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "FWD208", "NAN101"),
    priority=407,
)
