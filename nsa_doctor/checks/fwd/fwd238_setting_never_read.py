"""FWD238 setting-never-read

Detects: a setting that the constructor of a module has a default for, is given another value of by a call that names
    its class, and does not read, or asserts of alone; no line of its class names it or says that it is for others. A
    number that it does read, of which another changes nothing that modules answer, weigh or learn: a finding where it
    is set from another package or only kept, else a note. An argument of a method that is handed on only where it is
    None, to what has another value where one is given: the condition stands the wrong way round. A tensor or a number
    that a call gives a function, which it converts (`t = torch.full(shape, t)`) and then makes nothing of.
Matters: whoever sets it gets what the default would give, and two runs that differ in it are the same run.
Fix: hand the setting on to the part that it is for, or refuse values other than its default.

Example:
    # faulty
    def __init__(self, dim, window=None):
        self.layers = nn.ModuleList(Layer(dim) for _ in range(4))
    # correct
    def __init__(self, dim, window=None):
        self.layers = nn.ModuleList(Layer(dim, window=window) for _ in range(4))
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.settings_given import given_without_use, idle_settings
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.other_settings import settings_without_effect
from nsa_doctor.probes.hooks.none_alone import read_where_none
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.hooks.unread_arguments import UnreadArgument
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    module, found = idle_settings(subject)
    kinds = [(each.code, each.name) for each in found]
    for kind in dict.fromkeys(kinds):
        first, others = found[kinds.index(kind)], kinds.count(kind) - 1
        path = next(name for name, part in module.named_modules() if part is first.module)
        more = f" (and {others} more of its class)" if others else ""
        place = _place(first, path)
        yield Finding(
            message=(
                f"{path or type(first.module).__name__}{more} is given {first.name}={first.value!r}, where "
                f"{first.default!r} is its default, and nothing in its class reads it"
            ),
            where=in_subject(place, module),
            evidence={"attribute": first.name},
            repro=command_for(subject, "FWD238"),
        )

    for alone in read_where_none(module):
        yield Finding(
            message=f"{alone.kind}.{alone.place.function} reads {alone.name} only where it is None, in line "
            f"{alone.read_at}, and goes on without one that is given: the condition stands the wrong way round",
            where=in_subject(alone.place, module),
            evidence={"attribute": alone.name},
            repro=command_for(subject, "FWD238"),
        )

    for lost in given_without_use(subject):
        yield Finding(
            message=f"{lost.place.function} is given {lost.name}, converts it, and makes nothing of it{lost.instead}",
            where=in_subject(lost.place, module),
            evidence={"attribute": lost.name},
            repro=command_for(subject, "FWD238"),
        )

    for idle in settings_without_effect(subject) if not found else ():
        given, place = idle.given, in_subject(_place(idle.given, ""), module)
        message = (
            f"{type(given.module).__name__} is given {given.name}={given.value:g}, and nothing that it computes is "
            f"another with {idle.other:g}"
        )
        if idle.is_wrong:
            yield Finding(
                message=message,
                where=place,
                evidence={"attribute": given.name},
                repro=command_for(subject, "FWD238"),
            )
        else:
            yield Note(message=f"{message}: another setting may decide that", where=place)


def _place(given: UnreadArgument, path: str) -> Place:
    return Place(
        module=path,
        module_class=type(given.module).__name__,
        file=given.code.co_filename,
        line=given.code.co_firstlineno,
        function="__init__",
    )


def planted(subject: Subject) -> Subject:
    class Before(nn.Module):
        """The subject, and a setting that goes nowhere."""

        def __init__(self, window: int | None = None) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output

    return replace(subject, build=lambda _seed: Before(window=8), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
