"""Where gradients that should be the same part: the hand-written backward or the module, and the line."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.askings import Gradients, differing, function_at_fault, module_at_fault
from nsa_doctor.probes.hooks.lines_apart import at_line_apart, at_own_line
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.training import forward_backward


def gradient_place(
    sp: BuiltModule, result: Gradients, expected: Gradients, eps: float, ways: Iterable[Callable[[], object]]
) -> Place:
    """What is handed right gradients and hands on wrong ones; a module at the line that one of two ways alone runs.

    `ways` make the passes of the result and of what was expected once more.
    """
    path = module_at_fault(result, expected, differing(result, expected, eps), eps)
    place = replace(definition_place(part_at(sp.module, path)), module=path)
    written = function_at_fault(result, expected, eps)
    if written is None:
        return at_line_apart(sp.subject, place, *ways)
    at = inspect.unwrap(written.backward).__code__  # type: ignore[attr-defined]
    return replace(place, file=at.co_filename, line=at.co_firstlineno, function=at.co_name)


def line_of_earlier_calls(sp: BuiltModule, x: Tensor, place: Place) -> Place:
    """The line that passes alone run which have others behind them, of other lengths and rows too; else the place."""
    new, used = (built(sp.subject, dtype=sp.dtype, mode="train" if sp.module.training else "eval") for _ in range(2))
    another = x[:, : x.shape[1] // 2 + 1] if x.shape[1] > 2 else torch.cat((x, x), dim=1)
    others = another[:1], torch.cat((x, x[:1]))

    def often() -> None:
        for module, given in ((sp, x), (sp, x), (used, x), (used, x)):
            forward_backward(module, given)
        for other in others:
            forward_backward(used, other)
            forward_backward(used, x)

    with unobserved():
        return at_own_line(sp.subject, sp.module, place, often, lambda: forward_backward(new, x))
