"""FWD251 input-without-effect

Detects: a module whose output is the same for inputs that have nothing in common, in evaluation, behind a pass in
    training mode and with weights moved away from their start, though what it computes from its input flows into it;
    and channels of embeddings that change no output, where a part is handed them alone and gives the same for others.
    What makes a table, as of positions, is left alone, and so is an output of zeros.
Matters: it answers the same whatever it is asked; training may go on, by a gradient that goes round it.
Fix: look at the operation named, which is given other values and gives the same: sums taken apart, an index that is
    always one, a product with zeros.

Example:
    # faulty
    out = einsum("b n i, j d -> b n d", chosen, codebook)  # each is summed by itself: i and j are two letters
    # correct
    out = einsum("b n j, j d -> b n d", chosen, codebook)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.behaviour.blind_output import (
    blind_channels,
    call_that_drops,
    is_blind,
    is_led_on,
    line_of_loss,
    unlike_inputs,
)
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    lengths = odd_lengths(subject)
    sp = comparable_module(subject)
    if not lengths:
        return
    if not all(is_blind(sp, length) and is_led_on(sp, length) for length in lengths):
        yield from _of_channels(subject, sp, lengths[0])
        return
    if "train" in subject.modes and not _is_blind_once_trained(subject, sp.dtype, lengths[0]):
        return
    operation, place = line_of_loss(sp, unlike_inputs(sp, lengths[0])[:2])
    lost = f"; it is lost in {operation}, which gives the same for other values" if operation else ""
    yield Finding(
        message=f"the output is the same for inputs that have nothing in common at S={numbers(set(lengths))}{lost}",
        where=place,
        evidence={"length": max(lengths), "operation": operation},
        repro=command_for(subject, "FWD251"),
    )


def _of_channels(subject: Subject, sp: BuiltModule, length: int) -> Iterator[Finding | Note]:
    """Channels that no output depends on: a finding where a part is handed their values, and gives the same."""
    channels = blind_channels(sp, length)
    if not channels:
        return
    part = call_that_drops(sp, length, channels)
    several = "s" * (len(channels) > 1)
    message = f"channel{several} {numbers(channels)} of {subject.width} of the input change{'' if several else 's'} no "
    message += f"output at S={length}"
    if part is None:
        yield Note(message=message, where=definition_place(sp.module))
        return
    path = next(name for name, each in sp.module.named_modules() if each is part)
    yield Finding(
        message=f"{message}; {type(part).__name__} is handed other values where they are others, and gives the same",
        where=in_subject(replace(definition_place(part), module=path), sp.module),
        evidence={"length": length, "channels": ",".join(map(str, channels))},
        repro=command_for(subject, "FWD251"),
    )


def _is_blind_once_trained(subject: Subject, dtype: str, length: int) -> bool:
    """Whether it still is behind a pass in training mode, which may fill what it looks things up in."""
    sp = built(subject, dtype=dtype, mode="train")
    with unobserved(), torch.no_grad(), preserved_state():
        attempt(lambda: subject.forward(sp.module, sp.input(length, batch=2)))
        sp.module.eval()
        return is_blind(sp, length)


def planted(subject: Subject) -> Subject:
    def sums_apart(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        weights = torch.zeros_like(output).softmax(1)
        return output.mul(0) + weights.sum(1, keepdim=True)  # ones, whatever comes in

    return replace(subject, forward=sums_apart)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"),
    unless=("stochastic",),
    priority=459,
)
