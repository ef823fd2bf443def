"""GRD229 loss-depends-on-row-order

Detects: a loss of the module, by a method or a forward that takes targets, which is another when rows and their targets
are put in another order together: targets of one row are held against the answer for another, or an axis is taken for
the rows that is none. One that draws at random is left alone.
Matters: what a row is to learn is another row's; with one row nothing shows, and with many the loss still falls some.
Fix: lay out logits and targets in the same order before they are flattened.

Example:
    # faulty
    return cross_entropy(logits.flatten(0, 1), targets.t().flatten())
    # correct
    return cross_entropy(logits.flatten(0, 1), targets.flatten())
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.checks._shared.around import Around
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.loss_calls import Batch, LossCall, loss_calls
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 17  # neither it nor its half is the number of rows
_ORDERS = (  # that keep pairs of neighbours or of halves, threes, and the rows that stand opposite
    (2, 3, 4, 5, 0, 1),
    (1, 2, 0, 4, 5, 3),
    (3, 4, 5, 0, 1, 2),
    (5, 4, 3, 2, 1, 0),
    (4, 0, 3, 5, 1, 2),
)
_CLOSE, _ROUNDINGS = 1e-3, 1e4


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    length = min(_LENGTH, subject.max_length)
    x = sp.input(length, len(_ORDERS[0]))
    batch = Batch(x=x, lengths=torch.full(x.shape[:1], length, device=x.device))
    with torch.no_grad(), unobserved():  # what it raises for targets that it does not take is none of its faults
        found = attempt(lambda: [each for each in loss_calls(sp, batch) if each[1].targets is not None])
        if isinstance(found, Caught) or not found:
            raise NotApplicableError("it gives no loss of targets that could be asked for")
        for call, asked in found:
            changed = attempt(lambda call=call, asked=asked: _changes(sp, call, asked))
            if isinstance(changed, Caught) or changed is None:
                continue
            yield Finding(
                message=f"the loss of {call.name}({', '.join(call.takes.values())}) is {changed[1]:.6g}, and "
                f"{changed[0]:.6g} of the same rows in another order, with their targets, at B={len(x)}, S={length}",
                where=origin(subject, sp.module, lambda call=call, batch=asked: call.answer(sp, batch)),
                evidence={"loss": call.name, "length": length, "num_rows": len(x)},
                repro=command_for(subject, "GRD229"),
            )
            return


def _changes(sp: BuiltModule, call: LossCall, batch: Batch) -> tuple[float, float] | None:
    """The loss in another order and in this one, where each of several orders gives another."""
    assert batch.targets is not None
    plain = float(call(sp, batch))
    other = float(call(sp, replace(batch, targets=batch.targets.roll(1, 0))))  # targets of other rows
    due = max(_CLOSE * abs(other - plain), _ROUNDINGS * torch.finfo(getattr(torch, sp.dtype)).eps * abs(plain))
    losses = [float(call(sp, batch.rows(torch.tensor(order, device=batch.x.device)))) for order in _ORDERS]
    return (losses[0], plain) if all(abs(each - plain) > due for each in losses) else None


def planted(subject: Subject) -> Subject:
    class Trained(Around):
        """The subject, with a loss that holds the first row alone against its target, and the others against that."""

        def loss(self, x: Tensor, targets: Tensor) -> Tensor:
            """The mean square of what is missing to the target of the first row."""
            answers = self(x).flatten(2).mean(-1)
            return (answers - targets[:1].to(answers)).square().mean()

    return replace(subject, build=lambda _seed: Trained(subject), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD203"), unless=("stochastic",))
