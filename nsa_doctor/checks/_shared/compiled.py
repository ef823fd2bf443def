"""What a compiled copy of a module gives otherwise than the module, and where that comes from."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.wrong_copy import gradients_of, output_of, wrong_copy
from nsa_doctor.core.errors import Caught, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.askings import Gradients
from nsa_doctor.probes.hooks.lines_apart import at_line_beside
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.hooks.reached_lines import Lines
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.compiled_copy import CompiledCopy, compiled_copy
from nsa_doctor.probes.numerics.compare import Baseline


def failure_of(base: Baseline, copied: CompiledCopy, expected: Gradients | None) -> SubjectFailedError | None:
    """What a compiled pass, and its backward where gradients are expected, end in; None where they end."""
    try:
        output_of(copied.built, base.x)
        if expected is not None:
            gradients_of(base, copied.built)
    except SubjectFailedError as failure:
        return failure
    return None


def cause_of_its_own(error: BaseException | None, sp: BuiltModule) -> tuple[str, Place] | None:
    """What a line of the subject's own raised, in a sentence, and which; None where the compiler's did."""
    frames, own = FrameFilter(sp.subject.packages), None
    while error is not None:
        own = error if frames.is_raised_in_own(error.__traceback__) else own
        error = error.__cause__ or error.__context__
    if own is None:
        return None
    places = Places(frames)
    places.know(sp.module)
    return Caught(own).sentence, places.of_traceback(own.__traceback__)


def wrong_where_compiled(base: Baseline, copied: CompiledCopy, expected: Gradients | None) -> Finding | None:
    """The finding about a copy, compiled, that does not give what the module does; its place is not known yet."""
    return wrong_copy("torch.compile of it", base, copied.built, expected, _unknown)


def _unknown(sp: BuiltModule, copied: BuiltModule, x: Tensor) -> tuple[Place, str]:
    return Place(), ""


def place_of_departure(base: Baseline, whole: CompiledCopy, expected: Gradients | None) -> Place:
    """The innermost part that is wrong where it alone is compiled, and in it a line that is in graphs and never runs.

    Else its first operator that is not torch's, or where it is defined. Lines of what it holds that is right are none.
    """
    part, copied, root = "", whole, base.built.module
    innocent: Lines = {}
    while (inner := _wrong_part(base, part, expected, innocent)) is not None:
        part, copied = inner
    place = replace(definition_place(part_at(root, part)), module=part)
    for called in copied.operators:
        if called.line not in innocent.get(called.file, ()):
            place = replace(place, file=called.file, line=called.line, function=called.function)
            break
    lines = {file: each - innocent.get(file, set()) for file, each in copied.lines.items()}
    return at_line_beside(base.built.subject, place, lines, lambda: output_of(base.built, base.x))


def _wrong_part(
    base: Baseline, part: str, expected: Gradients | None, innocent: Lines
) -> tuple[str, CompiledCopy] | None:
    """The first of the parts directly in one that is wrong where it is compiled; keeps the lines of those before it."""
    innocent.clear()
    for path in _parts_in(base.built.module, part):
        copied = compiled_copy(base.built, path)
        if isinstance(copied, str):
            continue
        if wrong_where_compiled(base, copied, expected) is not None:
            return path, copied
        for file, lines in copied.lines.items():
            innocent.setdefault(file, set()).update(lines)
    return None


def _parts_in(root: nn.Module, part: str) -> Iterator[str]:
    """The parts directly in one, or in its lists, which are never called."""
    for name, inner in part_at(root, part).named_children():
        path = f"{part}.{name}" if part else name
        if isinstance(inner, (nn.ModuleList, nn.ModuleDict)):
            yield from _parts_in(root, path)
        else:
            yield path
