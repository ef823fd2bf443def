"""GRD213 value-computed-for-nothing

Detects: a value that parameters or the input are computed into in every pass and that nothing reads, while no output
depends on it: the value of `x.exp()` where `x.exp_()` or `x = x.exp()` was meant, a variable made of an attribute, or
of a variable whose name it has with a word more (`scores_masked` of `scores`), where the function goes on with that, or
one that is given another value before anything reads it. So are, in any method of its modules, which no pass need come
to, `scores.masked_fill(…)` by itself and a changed copy of a variable that is read afterwards in its place, as
`masked = torch.where(hidden, mask_id, ids)` is. Any other variable that nothing reads is a note.
Matters: the next line often reads another variable in its place: a sum over earlier tokens that is made and left out.
Fix: read it where it is meant, or remove the line.

Example:
    # faulty
    scores.masked_fill(hidden, -torch.inf)  # and goes on with `scores` as they were
    # correct
    scores = scores.masked_fill(hidden, -torch.inf)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS, watched_pass
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.hooks.unread_variables import Unread, dropped_in, unread_at
from nsa_doctor.probes.internal import shape_of
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.subject.contract import Subject

_LENGTH = 19
_OTHERS: tuple[tuple[Mode, int], ...] = (("train", 67), ("eval", 19))


def run(subject: Subject) -> Iterator[Finding | Note]:
    found = _unread(subject, "train", min(_LENGTH, subject.max_length))
    for mode, length in _OTHERS if found else ():
        again = _unread(subject, mode, min(length, subject.max_length))
        found = {key: each for key, each in found.items() if key in again}
    wrong = [(each, "is computed in every pass, and nothing reads it") for each in found.values() if each.instead]
    lines = {each.place.line_text for each, _ in wrong}
    dropped = [each for each in dropped_in(subject.build(subject.seed)) if each.place.line_text not in lines]
    reached = {each.place.line_text for each in found.values()}
    wrong += [(each, _dropped(each, is_reached=each.place.line_text in reached)) for each in dropped]
    lines |= {each.place.line_text for each in dropped}
    for each, how in wrong[:MOST_FINDINGS]:
        message = f"{each.name} {how}; {each.instead}"
        evidence = {"value": each.name}
        yield Finding(message=message, where=each.place, evidence=evidence, repro=command_for(subject, "GRD213"))
    rest = [each for each in found.values() if not each.instead and each.place.line_text not in lines]
    for each in rest[:MOST_FINDINGS]:
        yield Note(message=f"{each.name} is computed in every pass, and nothing reads it", where=each.place)


def _dropped(unread: Unread, *, is_reached: bool) -> str:
    if is_reached:
        return "is computed in every pass, and nothing reads it"
    how = "is read by nothing" if unread.name.isidentifier() else "stands by itself"
    return f"{how} in a method that no pass need come to"


def _unread(subject: Subject, mode: Mode, length: int) -> dict[tuple[str, str], Unread]:
    """What nothing reads of one pass, and no output comes of, by name and line."""
    sp = built(subject, mode=mode)
    with preserved_state():
        done, watch = watched_pass(sp, sp.input(length, batch=2), [])
    reached, waiting = set[object](), [tensor.grad_fn for tensor in (done.output, *done.others.values())]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in reached:
            reached.add(node)
            waiting += [before for before, _ in node.next_functions]
    dead = [(place, node) for node, place in watch.nodes.items() if node not in reached and place.file]
    lines = {place.line_text: in_subject(place, sp.module) for place, _ in dead}
    made = {text: [node for place, node in dead if place.line_text == text] for text in lines}
    found = unread_at(
        (place, [node.name() for node in made[text]], _is_as_large(made[text])) for text, place in lines.items()
    )
    return {(each.name, each.place.line_text): each for each in found}


def _is_as_large(nodes: Sequence[Any]) -> bool:
    """Whether what nodes of a line come to in the end has the shape of something that they were given."""
    used = {before for node in nodes for before, _ in node.next_functions if before is not None}
    given = {shape_of(node) for node in used.difference(nodes)} - {None}
    return any(shape_of(node) in given for node in nodes if node not in used)


def planted(subject: Subject) -> Subject:
    def sums_for_nothing(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        output.cumsum(1)
        return output

    return replace(subject, forward=sums_for_nothing)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
