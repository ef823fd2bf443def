"""PRF303 call-leaves-a-square-behind

Detects: an attribute that holds, after a call without gradients, something made of the input whose memory grows with
the square of the length, where the call itself needs less than that at its peak: it works in chunks or by a kernel.
Matters: what was computed in chunks so that it fits is all there afterwards, in every layer, until the next call.
Fix: keep a number, a mean or one row of it, and only when it is asked for.

Example:
    # faulty
    self.attention_maps[start] = weights.detach()  # of every chunk
    # correct
    self.entropy[start] = entropy(weights).mean().item()
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.growth import doubling, ladder
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_bytes
from nsa_doctor.probes.cost.left_behind import Attribute, Left, left_behind, square_left_behind, where_left
from nsa_doctor.probes.hooks.attribute_lines import line_that_fills
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_LONGEST, _NUM_LENGTHS = 1024, 6
_MOST_BYTES, _MOST_OPERATIONS = 1 << 30, 20_000


def run(subject: Subject) -> Iterator[Finding]:
    lengths = doubling(min(subject.max_length, _LONGEST), _NUM_LENGTHS)
    calls = ladder(lengths, lambda length: left_behind(subject, length), _costs)
    if len(calls) < 3:
        raise NotComparableError(f"memory was measured at {len(calls)} lengths only, and three are needed")
    if (found := square_left_behind(calls)) is None:
        return
    (path, name), exponent, needed = found
    sizes = ", ".join(f"{short_bytes(each.held.get((path, name), 0))} at S={each.length}" for each in calls[-3:])
    yield Finding(
        message=f"{name} holds, after a call without gradients, what grows with the power {exponent:.2f} of the length "
        f"({sizes}), where the call itself needs memory with the power {needed:.2f}",
        where=_place(subject, (path, name), calls[-1].length),
        evidence={
            "attribute": name,
            "exponent": exponent,
            "needed_exponent": needed,
            "length": calls[-1].length,
            "bytes": calls[-1].held[path, name],
        },
        repro=command_for(subject, "PRF303"),
    )


def _place(subject: Subject, held: Attribute, length: int) -> Place:
    """The line that fills the attribute; where its class has none, the one that allocated most of it."""
    path, name = held
    sp = built(subject)
    holder = part_at(sp.module, path)
    if (line := line_that_fills(holder, name)) is None:
        return where_left(sp, length)
    kind = type(holder).__name__
    return Place(module=path, module_class=kind, file=line.file, line=line.line, function=line.function)


def planted(subject: Subject) -> Subject:
    def keeps_every_pair(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        with torch.no_grad():
            one = output[0, :, 0]
            module.__dict__["pairs"] = [one * each for each in one.unbind()]
        return output

    return replace(subject, forward=keeps_every_pair)


def _costs(left: Left) -> list[tuple[float, float]]:
    return [(left.needed + sum(left.held.values()), _MOST_BYTES), (left.num_operations, _MOST_OPERATIONS)]


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "HNG101"),
    explained_by=("PRF301", "PRF101"),
)
