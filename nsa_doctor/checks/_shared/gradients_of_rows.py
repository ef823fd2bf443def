"""Lengths and batches whose gradients are compared with those of their rows: GRD105's question, asked of many."""

from collections.abc import Iterator, Sequence

import torch

from nsa_doctor.checks._shared.compared import many_tokens
from nsa_doctor.checks._shared.each_length import each_length
from nsa_doctor.core.declared import Declaration
from nsa_doctor.probes.gradients.by_row import first_departure
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.subject.contract import Subject

_LENGTH = 19
_BATCHES = (2, 3, 4, 5, 8)
_BATCHES_IN_TRAINING = (2, 3)
_FEW = (3,)  # of two, what exchanges them twice is not seen
_CALLS = 6  # a forward and a backward pass, of all rows and of each, in calls without gradients


def tried(subject: Subject) -> Iterator[tuple[BuiltModule, int, Sequence[int]]]:
    """Lengths and batches: growing ones of a short length, in training too, and one of many tokens in all.

    Of what no causal order lets GRD109 compare over lengths, a few rows of each length besides.
    """
    sp, length = comparable_module(subject), min(_LENGTH, subject.max_length)
    yield sp, length, _BATCHES
    yield from ((sp, long, (rows,)) for long, rows in many_tokens(subject, _CALLS))
    if "train" in subject.modes:
        training = comparable_module(subject, mode="train")
        if _keeps_rows_apart(training, length):
            yield training, length, _BATCHES_IN_TRAINING
    if Declaration.BIDIRECTIONAL in subject.spec:
        of_few = lambda length: first_departure(sp, length, _FEW)  # noqa: E731
        yield from ((sp, length, _FEW) for length in each_length(subject, of_few))


def _keeps_rows_apart(training: BuiltModule, length: int) -> bool:
    """Whether nothing is drawn, and the output of a row is that which it has alone: no statistics of a batch."""
    seed_everything(training.subject.seed)
    generators = Generators()
    base = baseline(training, training.input(length, max(_BATCHES_IN_TRAINING)))
    with torch.no_grad():
        is_apart = base.departure(training(base.x[-1:]), rows=slice(-1, None)) is None
    return is_apart and not generators.drawn_from()
