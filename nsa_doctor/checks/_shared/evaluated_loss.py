"""A loss that is another one when it is taken of the same batch again, in `eval()` and without gradients."""

import torch

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.writes import later_write
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS, _ROUNDINGS = 17, 3, 64


def loss_taken_again(subject: Subject, code: str) -> Finding | None:
    """None where the loss is the same, is not finite, or is another one though no buffer is: it may draw by itself."""
    loss, length = subject.loss, min(_LENGTH, subject.max_length)
    if loss is None:
        return None
    sp = comparable_module(subject)
    module, x = sp.module, sp.input(length, _ROWS)

    def taken() -> float:
        seed_everything(subject.seed)
        with torch.no_grad():
            return float(ask("loss", lambda: loss(module, x), module))

    buffers = dict(module.named_buffers())
    kept = {name: each.clone() for name, each in buffers.items()}
    first, again = taken(), taken()
    due = _ROUNDINGS * torch.finfo(getattr(torch, sp.dtype)).eps * abs(first)
    if not abs(again - first) > due:
        return None
    changed = [name for name, each in buffers.items() if not torch.equal(each, kept[name])]
    if not changed:
        return None
    written = later_write(subject, module, buffers[changed[0]], taken)
    return Finding(
        message=f"in eval() the loss of one batch at S={length} is {first:.6g}, and {again:.6g} when it is taken "
        f"again: each call writes into the buffer {changed[0]}",
        where=definition_place(module) if written is None else written.place,
        evidence={"length": length, "first": first, "again": again},
        repro=command_for(subject, code),
    )
