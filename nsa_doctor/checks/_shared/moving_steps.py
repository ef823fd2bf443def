"""The first steps of a training loop, on as few rows as it takes, or on so many that something moves."""

from torch.optim import Optimizer

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.stepping import Step, step
from nsa_doctor.probes.model.training import new_optimizer
from nsa_doctor.subject.contract import Subject

NUM_STEPS = 3  # a warm-up may well begin at a rate of zero
_MORE_ROWS = (4, 8)
Taken = tuple[BuiltModule, Optimizer, list[Step], set[str]]


def steps_that_move(subject: Subject, length: int, rate: float) -> Taken:
    """Steps on as few rows as the module takes, or on more where those move nothing: a loss of pairs."""
    taken = _taken(subject, length, rate)
    if taken[3]:
        return taken
    with unobserved():
        rows = next((each for each in _MORE_ROWS if _moves(subject, length, rate, each)), None)
    return taken if rows is None else _taken(subject, length, rate, rows)


def _moves(subject: Subject, length: int, rate: float, rows: int) -> bool:
    """Whether steps on so many rows move anything."""
    taken = attempt(lambda: _taken(subject, length, rate, rows))
    return not isinstance(taken, Caught) and bool(taken[3])


def _taken(subject: Subject, length: int, rate: float, rows: int | None = None) -> Taken:
    """Steps from the start, each on so many rows or as few as the module takes, and what they move."""
    sp = built(subject, mode="train")
    optimizer = new_optimizer(sp.module, rate)
    inputs = [sp.input(length, rows, subject.seed + index) for index in range(NUM_STEPS)]
    steps = [step(sp, optimizer, x) for x in inputs]
    return sp, optimizer, steps, set().union(*(taken.moved() for taken in steps))
