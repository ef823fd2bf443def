"""GRD231 optimizer-leaves-parameters-out

Detects: a method of the module, or a function beside it that takes the model, which builds an optimizer or groups of
parameters and leaves out some that are trainable and get gradients; that has one in two groups, which torch refuses; or
that holds copies of the module's, or those that were there before others took their place. Frozen parameters, those
without a gradient, and functions that are for some parameters by their names or words are left alone.
Matters: what is in no group stays as it is initialised, and nothing says so: the loss still falls.
Fix: give every parameter that requires a gradient to one group, and assert that none is left.

Example:
    # faulty
    decay = [p for p in self.parameters() if p.ndim >= 2]
    other = [p for n, p in self.named_parameters() if n.endswith("bias")]  # scales of norms are in neither
    # correct
    decay = [p for p in self.parameters() if p.ndim >= 2]
    other = [p for p in self.parameters() if p.ndim < 2]
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import listed
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.left_out import Fault, optimizer_faults
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    asked: list[str] = []
    faults = list(optimizer_faults(subject, asked))
    if not asked:
        raise NotApplicableError("its code offers no optimizer and no groups of parameters that could be asked for")
    for fault in faults:
        yield Finding(
            message=_said(fault),
            where=fault.place,
            evidence={"builder": fault.builder.name, "num_parameters": len(fault.names), "trainable": fault.total},
            repro=command_for(subject, "GRD231"),
        )


def _said(fault: Fault) -> str:
    name, parameters = fault.builder.name, listed(fault.names)
    if fault.kind == "left out":
        return f"{name} leaves out {parameters} of {fault.total} that are trainable, and they get gradients"
    if fault.kind == "copies":
        return f"{name} holds other tensors in place of {parameters}: no step changes what the module computes with"
    which = f"{parameters} are" if fault.names else "a parameter is"
    return f"{name}: {which} in several groups of one optimizer, which torch refuses"


def planted(subject: Subject) -> Subject:
    class Configured(nn.Module):
        """The subject, times a layer's answer, with groups that hold what has several dimensions, or is a bias."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.layer, self.scale = inner, nn.Linear(1, 1), nn.Parameter(Tensor([1.0]))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + (self.layer(output[..., :1].float()) * self.scale).to(output)

        def configure_param_groups(self, weight_decay: float) -> list[dict[str, Any]]:
            named = [(name, each) for name, each in self.named_parameters() if each.requires_grad]
            matrices = [each for _, each in named if each.ndim > 1]
            biases = [each for name, each in named if each.ndim < 2 and name.endswith("bias")]
            return [{"params": matrices, "weight_decay": weight_decay}, {"params": biases, "weight_decay": 0.0}]

    return replace(subject, build=lambda seed: Configured(subject.build(seed)), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))
