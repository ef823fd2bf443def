"""Where gradients that should be the same part: the hand-written backward or the module, and the line."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.askings import Gradients, differing, function_at_fault, module_at_fault
from nsa_doctor.probes.hooks.lines_apart import at_line_apart
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule


def gradient_place(
    sp: BuiltModule, result: Gradients, expected: Gradients, eps: float, ways: Iterable[Callable[[], object]]
) -> Place:
    """What is handed right gradients and hands on wrong ones; a module at the line that one of two ways alone runs.

    `ways` make the passes of the result and of what was expected once more.
    """
    path = module_at_fault(result, expected, differing(result, expected, eps), eps)
    place = replace(definition_place(sp.module.get_submodule(path)), module=path)
    written = function_at_fault(result, expected, eps)
    if written is None:
        return at_line_apart(sp.subject, place, *ways)
    at = inspect.unwrap(written.backward).__code__  # type: ignore[attr-defined]
    return replace(place, file=at.co_filename, line=at.co_firstlineno, function=at.co_name)
