"""Calls whose backward is still to come: what lies between the two, and what comes after, is for the caller to say."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.calling import Asking, call_with, laid_out
from nsa_doctor.probes.functions.layout import from_layout, to_layout
from nsa_doctor.subject.function import FunctionSubject, Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Pending:
    """A problem, its inputs as the convention lays them out, and the output, whose graph is kept."""

    problem: Problem
    inputs: Mapping[str, Tensor]
    out: Tensor


def begun(subject: FunctionSubject, problem: Problem) -> Pending | None:
    """A forward; None where it raises or there is nothing to differentiate."""
    tensors = laid_out(subject, problem, Asking())
    returned = attempt(lambda: call_with(subject, problem, tensors))
    out = None if isinstance(returned, Caught) else returned.get("out")
    if not isinstance(out, Tensor) or not out.requires_grad:
        return None
    return Pending(problem=problem, inputs=tensors, out=out)


def raw_gradients(subject: FunctionSubject, pending: Pending, keeps_graph: bool = False) -> dict[str, Tensor]:
    """The gradients as autograd hands them out, by name; none where the backward raises."""
    layout = subject.convention.output or subject.convention.layout
    dout = to_layout(pending.problem.dout.to(subject.device), layout).clone(memory_format=torch.contiguous_format)
    inputs = list(pending.inputs.values())
    subject.beat(pending.problem.shape)
    given = attempt(lambda: torch.autograd.grad(pending.out, inputs, dout, retain_graph=keeps_graph, allow_unused=True))
    if isinstance(given, Caught):
        return {}
    return {f"d{name}": value for name, value in zip(pending.inputs, given, strict=True) if value is not None}


def canonical(subject: FunctionSubject, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the doctor's own layout."""
    layout = subject.convention.layout
    return {name: from_layout(value.detach().cpu(), layout).clone() for name, value in gradients.items()}
