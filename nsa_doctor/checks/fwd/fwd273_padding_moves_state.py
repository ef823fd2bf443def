"""FWD273 padding-moves-state

Detects: a buffer that training moves (the codes of a quantiser, a running mean, a queue) and that another content of
    the padding which a mask marks, or more of it, moves to another place. The running statistics of a norm by the batch
    are a note.
Matters: outputs of a padded row look right, and what is learned by averages drifts towards what padding gives.
Fix: take the tokens that are none of padding alone, as in `self.update(x[mask])`.

Example:
    # faulty
    self.mean.lerp_(x.flatten(0, 1).mean(0), 0.01)
    # correct
    self.mean.lerp_(x[mask].mean(0), 0.01)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.moved_by_padding import Moved, moved_by_padding
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.subject.contract import Subject

_LENGTH, _PADDING = 37, 10  # no number of channels, heads or rows


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = min(_LENGTH, subject.max_length)
    if length <= 2 * _PADDING or length + _PADDING > subject.max_length or "train" not in subject.modes:
        raise NotApplicableError("it serves too few tokens for padding, or is not trained")
    with unobserved():
        moved = attempt(lambda: moved_by_padding(subject, length, _PADDING))
    if isinstance(moved, Caught):
        raise NotComparableError("it raises for a padded batch in training mode")
    for each in moved:
        said = (
            f"{'how much' if each.by_amount else 'what'} padding there is moves {_listed(each)} in training, by up to "
            f"{each.most:.2g}, with {_PADDING} of a row's {length} tokens masked as padding"
        )
        if each.is_of_a_norm:
            yield Note(message=said, where=each.place)
            continue
        yield Finding(
            message=said,
            where=each.place,
            evidence={"buffers": ",".join(each.names), "length": length, "padding": _PADDING},
            repro=command_for(subject, "FWD273"),
        )


def _listed(moved: Moved) -> str:
    more = len(moved.names) - 1
    return moved.names[0] + (f" and {more} other buffer{'s' if more > 1 else ''}" if more else "")


def planted(subject: Subject) -> Subject:
    padded = subject.padded
    assert padded is not None

    class Follows(nn.Module):
        """The mean of all that it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.mean: Tensor
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x: Tensor) -> None:
            self.mean.lerp_(x.to(self.mean.dtype).mean(), 0.1)

    def build(seed: int) -> nn.Module:
        module: Any = subject.build(seed)
        module.seen = Follows()
        return module

    def counts_padding(module: Any, x: Tensor, keep: Tensor) -> Tensor:
        if module.training:
            module.seen(x)
        output: Tensor = padded(module, x, keep)
        return output

    return replace(subject, build=build, padded=counts_padding)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("padded",), blocked_by=("FWD101", "FWD206", "NAN101"))
