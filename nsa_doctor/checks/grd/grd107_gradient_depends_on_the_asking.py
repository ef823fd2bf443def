"""GRD107 gradient-depends-on-the-asking

Detects: gradients of one output that change with what must not matter: the strides of the cotangent, create_graph, a
frozen parameter elsewhere, training mode where the output is the same; or that a larger cotangent makes not finite.
Matters: `loss.sum()`, a fused loss and a scaled one hand over other strides and sizes than the one that was tested.
Fix: a hand-written backward reads `grad` by its strides, or branches on a mode; call `.contiguous()` on it first.

Example:
    # faulty
    kernel[grid](grad.data_ptr(), grad.numel())
    # correct
    grad = grad.contiguous()
    kernel[grid](grad.data_ptr(), grad.numel())
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import again
from nsa_doctor.probes.gradients.askings import (
    Asking,
    Gradients,
    askings,
    described,
    differing,
    function_at_fault,
    gradients,
    module_at_fault,
)
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_specimen
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.probes.numerics.precision import effective_precision
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 37, 2


def run(subject: Subject) -> Iterator[Finding]:
    built = comparable_specimen(subject)
    if not any(parameter.requires_grad for parameter in built.module.parameters()):
        raise NotApplicableError("it has no parameter that is trained")
    length = min(_LENGTH, subject.max_length)
    x = built.input(length, batch=_ROWS)
    shape = baseline(built, x).output.shape
    cotangent = torch.randn(shape, generator=torch.Generator().manual_seed(subject.seed), dtype=torch.float64)
    for asking in askings(built):
        found = _examine(subject, built, x, cotangent, asking)
        if found is not None:
            yield found
            return


def _examine(subject: Subject, built: BuiltModule, x: Tensor, cotangent: Tensor, asking: Asking) -> Finding | None:
    expected = gradients(built, x, asking.like(cotangent))
    result = _asked(built, x, cotangent, asking)
    if expected is None or result is None:
        return None
    eps = effective_precision(built, x.shape[1]).eps
    names = differing(result, expected, eps, is_compared=asking.is_compared)
    if not names:
        return None
    path = module_at_fault(result, expected, names, eps)
    place = replace(definition_place(built.module.get_submodule(path)), module=path)
    if (written := function_at_fault(result, expected, eps)) is not None:
        code = inspect.unwrap(written.backward).__code__  # type: ignore[attr-defined]
        place = replace(place, file=code.co_filename, line=code.co_firstlineno, function=code.co_name)
    return Finding(
        message=f"{asking.words} gives {described(result, expected, names)} at S={x.shape[1]}, nearest the output in "
        f"{names[-1]}",
        where=place,
        evidence={"length": x.shape[1], "asking": asking.words, "num_parameters": len(names), "dtype": built.dtype},
        repro=again(subject, "GRD107"),
    )


def _asked(built: BuiltModule, x: Tensor, cotangent: Tensor, asking: Asking) -> Gradients | None:
    try:
        with unobserved():
            return gradients(built, x, cotangent, asking)
    except SubjectFailedError:
        if asking.may_refuse:
            return None
        raise


class _ReadsMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Tensor:
        return given[0] if given[0].is_contiguous() else given[0] / 2


def planted(subject: Subject) -> Subject:
    return replace(subject, forward=lambda module, x: _ReadsMemory.apply(subject.forward(module, x)))


CHECK = Check(
    doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "NAN101"), explained_by=("GRD101",)
)
