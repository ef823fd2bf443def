"""FWD268 part-never-read

Detects: a softmax that a constructor builds, that no source reads by its name and no pass calls, while the same forward
weighs by products of tokens with tokens that nothing normalises; an activation, a norm without parameters or a pooling
that a constructor is given in place of its default, as a module, a class, a function or by its name, and keeps, and
that no pass calls and no source reads but to print it or to save its configuration. Any other softmax, and a norm
without parameters, an activation or positions that nothing reads, may be left over, and are a note.
Matters: attention weighs by raw scores; shapes are right, and the loss falls all the same.
Fix: call it where its result is meant to be used, or remove it.

Example:
    # faulty
    self.attend = nn.Softmax(dim=-1)
    attention = q @ k.mT * self.scale
    y = attention @ v
    # correct
    self.attend = nn.Softmax(dim=-1)
    attention = self.attend(q @ k.mT * self.scale)
    y = attention @ v
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.kept_for_others import is_kept_for_others
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.handed_parts import HandedPart, handed_parts
from nsa_doctor.probes.behaviour.unread_parts import UnreadPart, unread_parts
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_RAW = "its holder weighs by products of tokens that nothing normalises"


def run(subject: Subject) -> Iterator[Finding | Note]:
    handed = [each for each in handed_parts(subject) if not is_kept_for_others(each)]
    yield from _handed(subject, handed)
    lines = {each.place.line_text for each in handed}
    groups: dict[tuple[str, str], list[UnreadPart]] = {}
    for each in unread_parts(subject):
        if each.place.line_text not in lines:
            groups.setdefault((each.place.line_text, each.path.rpartition(".")[2]), []).append(each)
    root = built(subject).module if groups else None
    for same in groups.values():
        first, others = next((each for each in same if not each.instead), same[0]), len(same) - 1
        more = f" (and {others} more)" if others else ""
        message = (
            f"{first.path}{more}: {type(first.part).__name__} is built, no source reads it by that name, and "
            f"{first.num_passes} passes do not call it; {first.instead or _RAW}"
        )
        assert root is not None
        place = in_subject(first.place, root)
        if first.instead:
            yield Note(message=message, where=place)
        else:
            yield Finding(
                message=message,
                where=place,
                evidence={"attribute": first.path, "passes": first.num_passes},
                repro=command_for(subject, "FWD268"),
            )


def _handed(subject: Subject, handed: list[HandedPart]) -> Iterator[Finding]:
    """One finding for each line."""
    lines = [each.place.line_text for each in handed]
    for line in dict.fromkeys(lines):
        first, others = handed[lines.index(line)], lines.count(line) - 1
        path = first.path or type(first.holder).__name__
        more = f" (and {others} more)" if others else ""
        yield Finding(
            message=(
                f"{path}{more} is given {first.argument} {first.value} and keeps it as {first.attribute}; no source "
                f"reads it to use it, and {first.num_passes} passes do not call it"
            ),
            where=first.place,
            evidence={"attribute": first.attribute, "passes": first.num_passes},
            repro=command_for(subject, "FWD268"),
        )


def planted(subject: Subject) -> Subject:
    class Weighed(nn.Module):
        """The subject, and a mean of its outputs weighted by scores that nothing normalises."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.weighing = Weighing()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + 1e-3 * self.weighing(output)

    class Weighing(nn.Module):
        """Products alone."""

        def __init__(self) -> None:
            super().__init__()
            self.attend_by = nn.Softmax(dim=-1)

        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.mT).tril() @ x

    return replace(subject, build=lambda _seed: Weighed(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
