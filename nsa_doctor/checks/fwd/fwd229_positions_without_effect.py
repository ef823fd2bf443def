"""FWD229 positions-without-effect

Detects: positions that are computed in every pass, are handed to a function that does not read them, and on which no
output depends, whatever is put in their place; and a module that computes positions, while its outputs move along when
its tokens change places, or its last one does not see their order, as where heads are rotated in place of tokens; and
heads that tell no distance beside the first, which is rotated, as where that is done before heads are split; where
others are, it is a note. So it is where nobody is seen to be handed positions: they may be read elsewhere.
Matters: to such a model a sentence is a bag of words; the loss falls all the same, only less far.
Fix: apply the rotation, the bias or the table where it is handed to, and count positions from 0 to S − 1.

Example:
    # faulty
    def forward(self, x, rotation=None):  # and reads `rotation` nowhere
        scores = self.q(x) @ self.k(x).mT
    # correct
    def forward(self, x, rotation=None):
        scores = rotated(self.q(x), rotation) @ rotated(self.k(x), rotation).mT
"""

from collections.abc import Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.attention.turned_heads import unturned_heads
from nsa_doctor.probes.behaviour.idle_positions import (
    are_idle,
    is_blind_to_order,
    lengths_of,
    modules_of_positions,
    reads_without_order,
    uses_of_positions,
)
from nsa_doctor.probes.hooks.places import Places, in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 19


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject)
    length = min(_LENGTH, subject.max_length)
    unturned, done = unturned_heads(sp, length), uses_of_positions(sp, length)
    if unturned is None and not done.used:
        raise NotApplicableError("nothing that is named after positions is used, or it is trained")
    named = next(iter(done.used), "") + (f" and {len(done.used) - 1} more" if len(done.used) > 1 else "")
    place = next(iter(done.used.values()), Place())
    if unturned is not None:
        message, place = f"{unturned.text} at S={length}, while others are turned by position", unturned.place
        if not unturned.is_wrong:
            yield Note(message=message, where=in_subject(place, sp.module))
            return
    elif are_idle(sp):
        lengths = numbers(lengths_of(sp))
        message = f"{named}: positions that every pass computes, and no output at S={lengths} depends on their values"
        unread = done.unread
        if unread is None:
            yield Note(message=message, where=in_subject(place, sp.module))
            return
        message += f"; {unread.code.co_qualname} is handed them as {unread.argument} and does not read it"
        place = _definition(unread.code, sp.module)
    elif sp.dtype == "float64" and length > 2 and is_blind_to_order(sp):
        message = f"tokens in another order give the same outputs in that order at S={length}, although {named} is used"
    elif sp.dtype == "float64" and length > 2 and reads_without_order(sp):
        message = f"the order of earlier tokens does not change the last output at S={length}, although {named} is used"
    else:
        return
    yield Finding(
        message=message,
        where=in_subject(place, sp.module),
        evidence={"length": length, "positions": ",".join(done.used)},
        repro=command_for(subject, "FWD229"),
    )


def _definition(code: CodeType, root: nn.Module) -> Place:
    """Where a function is defined, in the module whose method it is."""
    places = Places(FrameFilter())
    places.know(root)
    return places.owner(Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name))


def planted(subject: Subject) -> Subject:
    class Unread(nn.Module):
        def __init__(self, positions: nn.Module) -> None:
            super().__init__()
            self.positions = positions

        def forward(self, *args: Any) -> Any:
            return self.other_than(self.positions(*args))

        def other_than(self, rotation: Any) -> Tensor:
            return torch.zeros(())

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        for path, part in list(modules_of_positions(module)):
            module.set_submodule(path, Unread(part))
        return module

    return replace(subject, build=build)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "NAN101"))
