"""GRD228 loss-counts-padding

Detects: a loss of the module, by a method or a forward that takes targets, lengths or a mask of tokens, which other
tokens in the padding change, which falls as there is more padding because its mean is taken over that too, or whose
mean counts targets that are -100, where its source speaks of ignoring. A sum is left alone, and one that draws at
random.
Matters: the same rows give another loss and other gradients by what they happen to be batched with; short rows count
less than long ones, and what is learnt depends on the bucket.
Fix: take the loss where there is a target, and divide by how many there are.

Example:
    # faulty
    return (nll * mask).mean()
    # correct
    return (nll * mask).sum() / mask.sum().clamp(min=1)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsa_doctor.checks._shared.around import Around
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.loss_calls import Batch, loss_calls
from nsa_doctor.probes.behaviour.padded_losses import padding_fault
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _PADDING = 24, (0, 4, 9)  # the longest first, as rows are packed


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    length = min(_LENGTH, subject.max_length)
    x = sp.input(length, len(_PADDING))
    batch = Batch(x=x, lengths=torch.tensor([length - min(n, length // 2) for n in _PADDING], device=x.device))
    with torch.no_grad(), unobserved():  # what it raises for targets that it does not take is none of its faults
        found = attempt(lambda: list(loss_calls(sp, batch)))
        if isinstance(found, Caught) or not found:
            raise NotApplicableError("it gives no loss of targets, lengths or a mask of tokens that could be asked for")
        for call, asked in found:
            fault = attempt(lambda call=call, asked=asked: padding_fault(sp, call, asked))
            if isinstance(fault, Caught) or fault is None:
                continue
            yield Finding(
                message=f"the loss of {call.name}({', '.join(call.takes.values())}): {fault.words}, at S={length}",
                where=origin(subject, sp.module, lambda fault=fault: fault.call.answer(sp, fault.batch)),
                evidence={"loss": call.name, "length": length},
                repro=command_for(subject, "GRD228"),
            )
            return


def planted(subject: Subject) -> Subject:
    class Trained(Around):
        """The subject, with a loss whose mean is taken over padding too."""

        def loss(self, x: Tensor, lengths: Tensor) -> Tensor:
            """The mean square of what is answered for each row."""
            whole = zip(x, lengths.tolist(), strict=True)
            rows = [self(row[None, :length])[0].flatten(1).square().mean(1) for row, length in whole]
            return torch.stack([pad(row, (0, x.shape[1] - len(row))) for row in rows]).mean()

    return replace(subject, build=lambda _seed: Trained(subject), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102"),
    explained_by=("FWD226",),
    unless=("stochastic",),
)
