"""Where other rows of a batch change a row's output: FWD203's question, asked of many kinds of rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import middle_lengths, odd_lengths
from nsa_doctor.core.finding import Note
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.internal import NORMS_BY_BATCH
from nsa_doctor.probes.model.batch_statistics import batch_statistics
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.inputs import rows_to_try, with_values
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Subject

NUM_ROWS = 5
OF_ORDINARY_VALUES = "other rows of ordinary values"
_SHORT = 19
_MODES: tuple[Mode, ...] = ("eval", "train")
_ORDINARY = "other rows"
_ROWS_LIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # of ordinary ones, and of the row that is held
    _ORDINARY: lambda x, own: x,
    "other rows of zeros": lambda x, own: torch.zeros_like(x),
    "other rows of one value": lambda x, own: x.amax((1, *range(2, x.ndim)), keepdim=True).expand_as(x),
    "other rows that begin with zeros": lambda x, own: torch.cat((torch.zeros_like(x[:, ::2]), x[:, 1::2]), 1),
    "other rows that end with zeros": lambda x, own: torch.cat((x[:, 1::2], torch.zeros_like(x[:, ::2])), 1),
    "other rows equal to it in place of others": lambda x, own: own.expand_as(x),
}


@dataclass(frozen=True)
class Plan:
    """A length, a mode, and which rows are held while the others change: a call each, beside one without a change.

    And the kind of values of the input, where it is no ordinary one.
    """

    length: int
    mode: Mode
    held: tuple[tuple[str, int], ...]
    values: str = ""

    def module(self, subject: Subject) -> BuiltModule:
        """What is called: the subject behind these values, norms that mix rows as they are meant to in eval()."""
        return with_norms_of_eval(with_values(subject, self.values), self.mode)

    def changed(self, subject: Subject, built: BuiltModule, like: str, row: int) -> tuple[BuiltModule, Tensor]:
        """The batch x [B, S, ...] with rows of that kind around the row held, and what it goes through."""
        x, others = (built.input(self.length, NUM_ROWS, seed=subject.seed + another) for another in (0, 1))
        own = x[row : row + 1]
        if like == OF_ORDINARY_VALUES:
            built = replace(built, subject=with_values(subject, self.values, row))
        else:
            others = _ROWS_LIKE[like](others, own)
        return built, torch.cat((others[:row], own, others[row + 1 :]))


def norms_by_batch(built: BuiltModule) -> list[tuple[str, nn.Module]]:
    """Those that normalise by the batch in training alone, and keep what they have seen for eval(), by path.

    A class of torch's, or one of the subject's own by what it does.
    """
    own = batch_statistics(built)
    return [
        (path, part)
        for path, part in built.module.named_modules()
        if part.training and (path in own or (isinstance(part, NORMS_BY_BATCH) and part.running_mean is not None))
    ]


def with_norms_of_eval(subject: Subject, mode: Mode) -> BuiltModule:
    """The subject in a mode, with norms by the batch as they are in eval()."""
    sp = comparable_module(subject, mode=mode)
    for _, norm in norms_by_batch(sp):
        norm.training = False
    return sp


def mixed_by_norms(subject: Subject, what: str) -> Iterator[Note]:
    """A note where norms by the batch mix rows, or tokens, in training, as they are meant to."""
    norms = norms_by_batch(built(subject, mode="train")) if "train" in subject.modes else []
    if norms:
        more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
        yield Note(message=f"in training mode {what} mix in {norms[0][0] or 'its norm'}{more}, a norm by the batch")


def plans(subject: Subject) -> Iterator[Plan]:
    """The first row and the last are held in turn; at the first length both are, and all kinds of others are tried."""
    modes = [mode for mode in _MODES if mode in subject.modes]
    lengths = [(length, mode) for mode in modes for length in odd_lengths(subject)[:2]]
    lengths += [(length, "eval") for length in middle_lengths(subject)[1:2]]
    kinds = list(_ROWS_LIKE) if "eval" in modes and subject.profile != "smoke" else [_ORDINARY]
    for number, (length, mode) in enumerate(lengths[:1] if subject.is_slow else lengths):
        turns = [(kind, -((number + turn) % 2)) for turn, kind in enumerate([_ORDINARY] if number else kinds)]
        yield Plan(length, mode, tuple(turns if number else [*turns, (_ORDINARY, -1)]))
    for kind in rows_to_try(subject) if "eval" in modes else []:
        yield Plan(min(_SHORT, subject.max_length), "eval", ((_ORDINARY, -1), (OF_ORDINARY_VALUES, -1)), kind)


def mixed(subject: Subject, plan: Plan) -> tuple[str, int, Departure] | None:
    """The first kind of other rows that changes the row held, that row, and how."""
    built = plan.module(subject)
    first = built.input(plan.length, NUM_ROWS)
    base = baseline(built, first)
    for like, held in plan.held:
        row = held % NUM_ROWS
        beside, x = plan.changed(subject, built, like, row)
        with torch.no_grad():
            output = beside(x)
        found = base.departure(output[row : row + 1], rows=slice(row, row + 1), given=x, through=beside)
        if found is not None and _state_after(built, first) == _state_after(beside, x):
            return like, row, replace(found, first_row=row)
    return None


def _state_after(built: BuiltModule, x: Tensor) -> bytes:
    """Of the generator of random numbers: where as many are not drawn, as of packed rows, a row gets other ones."""
    with torch.no_grad():
        built(x)
    return torch.default_generator.get_state().numpy().tobytes()
