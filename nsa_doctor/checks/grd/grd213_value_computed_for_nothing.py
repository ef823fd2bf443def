"""GRD213 value-computed-for-nothing

Detects: a value that parameters or the input are computed into in every pass, whose variable nothing reads, and that no
output depends on; a note, not a finding.
Matters: the next line often reads another variable in its place: a sum over earlier tokens that is made and left out.
Fix: read it where it is meant, or remove the line.

Example:
    # faulty
    summed = context.cumsum(1)
    y = q @ context  # and nothing reads `summed`
    # correct
    summed = context.cumsum(1)
    y = q @ summed
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import watched_pass
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Note
from nsa_doctor.core.measurement import Mode, Place
from nsa_doctor.probes.hooks.unread_variables import unread_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.subject.contract import Subject

_LENGTH = 19
_OTHERS: tuple[tuple[Mode, int], ...] = (("train", 67), ("eval", 19))
_MOST_NOTES = 3


def run(subject: Subject) -> Iterator[Note]:
    found = _unread(subject, "train", min(_LENGTH, subject.max_length))
    for mode, length in _OTHERS if found else ():
        again = _unread(subject, mode, min(length, subject.max_length))
        found = {each: place for each, place in found.items() if each in again}
    for (name, _), place in list(found.items())[:_MOST_NOTES]:
        yield Note(message=f"{name} is computed in every pass, and nothing reads it", where=place)


def _unread(subject: Subject, mode: Mode, length: int) -> dict[tuple[str, str], Place]:
    """Variables of one pass that nothing reads, whose values no output comes of, by name and line."""
    sp = built(subject, mode=mode)
    with preserved_state():
        done, watch = watched_pass(sp, sp.input(length, batch=2), [])
    reached, waiting = set[object](), [tensor.grad_fn for tensor in (done.output, *done.others.values())]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in reached:
            reached.add(node)
            waiting += [before for before, _ in node.next_functions]
    dead = {place.line_text: place for node, place in watch.nodes.items() if node not in reached and place.file}
    root = type(sp.module).__name__
    owned = [place if place.module_class else replace(place, module_class=root) for place in dead.values()]
    return {(name, place.line_text): place for name, place in unread_at(owned)}


def planted(subject: Subject) -> Subject:
    def sums_for_nothing(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        summed = output.cumsum(1)  # noqa: F841
        return output

    return replace(subject, forward=sums_for_nothing)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
