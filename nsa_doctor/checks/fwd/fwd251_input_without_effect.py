"""FWD251 input-without-effect

Detects: a module whose output is the same, bit by bit, for inputs that have nothing in common, in evaluation and with
    weights moved away from their start, though it learns from its input or has layers of weights. What makes a table,
    as of positions, is left alone.
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
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.behaviour.blind_output import is_blind, line_of_loss
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_FEWEST_MATRICES = 2  # one alone may be a table


def run(subject: Subject) -> Iterator[Finding]:
    lengths = odd_lengths(subject)
    sp = comparable_module(subject)
    if not lengths or not all(is_blind(sp, length) for length in lengths) or not _uses_its_input(subject, lengths[0]):
        return
    operation, place = line_of_loss(sp, lengths[0])
    lost = f"; it is lost in {operation}, which gives the same for other values" if operation else ""
    yield Finding(
        message=f"the output is the same for inputs that have nothing in common at S={numbers(set(lengths))}{lost}",
        where=place,
        evidence={"length": max(lengths), "operation": operation},
        repro=command_for(subject, "FWD251"),
    )


def _uses_its_input(subject: Subject, length: int) -> bool:
    """Whether it has layers of weights, or gets a gradient at its input in training."""
    sp = comparable_module(subject, mode="train")
    if sum(each.ndim >= 2 for each in sp.module.parameters()) >= _FEWEST_MATRICES:
        return True
    x = sp.input(length)
    if not x.is_floating_point():
        return False
    with unobserved(), torch.enable_grad():
        x.requires_grad_()
        ended = attempt(lambda: sp(x).sum().backward())
    return not isinstance(ended, Caught) and x.grad is not None and bool(x.grad.any())


def planted(subject: Subject) -> Subject:
    def sums_apart(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        weights = torch.zeros_like(output).softmax(1)
        return output.mul(0) + weights.sum(1, keepdim=True)

    return replace(subject, forward=sums_apart)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"), priority=459)
