"""The line of a hand-written autograd function that wrong gradients come from, and no right one."""

import ast
from collections.abc import Collection
from dataclasses import replace

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.tensors.backward_source import code_of, definition_of, read_backward


def place_at_fault(function: type, wrong: Collection[int], right: Collection[int]) -> Place | None:
    """The line of `function` that makes the gradients of the arguments `wrong` other than derivatives.

    Where all that they share is what forward has saved, it is the line that saves. None where the source does not say.
    """
    code = code_of(getattr(function, "backward", None))
    source = None if code is None else read_backward(code)
    found = None if source is None else source.at_fault(wrong, right)
    if source is None or found is None:
        return None
    return source.place_of(found) if found.computes else _saving(function) or source.place_of(found)


def first_line(function: type, place: Place) -> Place:
    """The place with the first line of its backward; as it was where there is no source."""
    code = code_of(getattr(function, "backward", None))
    if code is None:
        return place
    lines = sorted({line for *_, line in code.co_lines() if line and line > code.co_firstlineno})
    line = lines[0] if lines else code.co_firstlineno
    return replace(place, file=code.co_filename, line=line, function="backward")


def _saving(function: type) -> Place | None:
    """Where it saves tensors for its backward."""
    for name in ("setup_context", "forward"):
        code = code_of(getattr(function, name, None))
        body = None if code is None else definition_of(code)
        for node in () if body is None else ast.walk(body):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "save_for_backward" and code:
                return Place(file=code.co_filename, line=node.lineno, function=code.co_name)
    return None
