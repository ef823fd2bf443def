"""FWD252 padding-id-read

Detects: a subject of tokens that hides one id by itself, as that of padding: it compares its input with it, and no
    token attends to one. With such tokens behind a row's own, these come out other than in the row alone. And a
    subject of one answer for a row, which such tokens behind it leave as it is, while in front of it they make it the
    same whatever the row holds.
Matters: batches are padded; a row then gets another answer for the length of its neighbours.
Fix: hide padding from whatever else mixes tokens: with zeros from convolutions, sums and means, and from norms over
    tokens.

Example:
    # faulty
    mask = ids != self.pad_id
    x = x + self.conv(x.mT).mT  # reads the padding that attention does not see
    # correct
    mask = ids != self.pad_id
    x = x + self.conv((x * mask[..., None]).mT).mT
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.padded_rows import PaddedRow, masks_by_place
from nsa_doctor.probes.attention.padding_ids import compared_ids, deaf_rows, is_hidden, without_id
from nsa_doctor.probes.behaviour.blind_output import line_of_loss
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.subject.contract import Subject

_LENGTH, _PADDING, _DRAWS = 37, 10, 3
_SECOND = slice(1, 2)  # of two rows, which is padded


def run(subject: Subject) -> Iterator[Finding]:
    length = min(_LENGTH, subject.max_length)
    if subject.input != "tokens" or masks_by_place(subject) or length <= 2 * _PADDING:
        raise NotApplicableError("it takes no ids, or a mask of padding beside them")
    sp = comparable_module(subject)
    for number, place in compared_ids(sp, sp.input(length)).items():
        row = PaddedRow(_padding_with(sp, number), length, _PADDING, is_left=False)
        with torch.no_grad():
            if (rows := deaf_rows(sp, number, length - _PADDING, _PADDING, _DRAWS)) is not None:
                yield _deaf(subject, number, length, line_of_loss(sp, rows)[1])
                return
            if not is_hidden(sp, [_padded_alone(sp, length, number, draw) for draw in range(_DRAWS)], _PADDING):
                continue
            found = baseline(sp, row.input).departure(row.output(), _SECOND, row.own, expected=row.alone())
        if found is not None:
            yield Finding(
                message=f"a row's own tokens are other than those of the row alone: {found.text}, with {_PADDING} "
                f"tokens of id {number} behind them, which is hidden as padding at {place.short_line}",
                where=row.counting(),
                evidence={"length": length, "padding": _PADDING, "id": number},
                repro=command_for(subject, "FWD252"),
            )
            return


def _deaf(subject: Subject, number: int, length: int, place: Place) -> Finding:
    message = f"a row behind {_PADDING} tokens of id {number} gets the same answer whatever it holds, at S={length}, "
    message += "while behind it they change nothing: padding in front is read in its place"
    evidence = {"length": length, "padding": _PADDING, "id": number}
    return Finding(message=message, where=place, evidence=evidence, repro=command_for(subject, "FWD252"))


def _padding_with(sp: BuiltModule, number: int) -> BuiltModule:
    """The same, whose padding is that id."""

    def padded(subject: Subject, module: nn.Module, x: Tensor, keep: Tensor) -> Tensor:
        ids = x.masked_fill(~keep, number)
        return checked_answer(subject, subject.forward(module, ids), ids)[0]

    return replace(sp, subject=replace(sp.subject, padded=partial(padded, sp.subject)))


def _padded_alone(sp: BuiltModule, length: int, number: int, draw: int) -> tuple[Tensor, Tensor]:
    """A row with that id at its end, and the same row with others there."""
    other = without_id(sp.input(length, seed=sp.subject.seed + draw), number, sp.subject.width)
    padded = other.clone()
    padded[:, -_PADDING:] = number
    return padded, other


def planted(subject: Subject) -> Subject:
    class Averaging(nn.Module):
        """Tokens that attend to none of id 0, and to which a mean over all is added."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, ids: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, ids)
            scores = (output @ output.mT).masked_fill((ids == 0)[:, None], -torch.inf)
            return scores.softmax(-1) @ output + output.mean(1, keepdim=True)

    return replace(subject, build=lambda _seed: Averaging(), forward=lambda module, x: module(x))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"),
    unless=("stochastic",),
    priority=460,
)
