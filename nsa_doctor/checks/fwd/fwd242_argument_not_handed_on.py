"""FWD242 argument-not-handed-on

Detects: a method, or a function put in its place, that hands all of its positional arguments on and none of the named
    ones, which nothing reads; a function that takes settings which nothing in it reads, and calls another that takes
    them under the same names; a constructor that hands one of its settings on twice, the second time under the name of
    another setting, which has no use.
Matters: a state, a mask or a size that the caller gives by name comes to nothing, and no error says so.
Fix: hand the named arguments on too; hand each setting on under its own name.

Example:
    # faulty
    def forward(*args, **kwargs):
        return original(*args)
    # correct
    def forward(*args, **kwargs):
        return original(*args, **kwargs)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.lost_arguments import lost_arguments
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject)
    module = sp.module
    for lost in lost_arguments(sp):
        path = next(name for name, part in module.named_modules() if part is lost.module)
        place = Place(
            module=path,
            module_class=type(lost.module).__name__,
            file=lost.code.co_filename,
            line=lost.line,
            function=lost.code.co_name,
        )
        yield Finding(
            message=f"in {lost.code.co_name} of {path or type(lost.module).__name__}, {lost.what}",
            where=in_subject(place, module),
            repro=command_for(subject, "FWD242"),
        )


def planted(subject: Subject) -> Subject:
    class Around(nn.Module):
        """The subject, called without what is given by name."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return self.call(*args)

        def call(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output

    return replace(subject, build=lambda _seed: Around(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",))
