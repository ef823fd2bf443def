"""Orders of calls that bring out what one call leaves behind for the next: A, B, A, with all kinds of B."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from nsa_doctor.core.check import Profile
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.call_history import ROWS_IN_BFLOAT16, Call, Step, Switch
from nsa_doctor.probes.model.nominal_time import nominal_seconds
from nsa_doctor.subject.contract import Subject

_LENGTH, _LONGER, _SHORTER = 19, 67, 5
_BATCHES = (1, 2, 3, 4, 5, 8)
# So many equal calls at the end: what happens at every seventeenth call, or with a probability of 0.05, is seen too.
_REPEATS: dict[Profile, int] = {"smoke": 6, "quick": 48, "full": 200}
_TRAINING_REPEATS: dict[Profile, int] = {"smoke": 4, "quick": 32, "full": 200}
# Beyond those, where calls are cheap: 0.95 to the power of 140 is one in a thousand.
_MOST_FURTHER: dict[Profile, int] = {"smoke": 0, "quick": 92, "full": 200}
_NOMINAL_SECONDS_FURTHER = 0.3
_OF_A_TRAINING_PASS = 3  # times the work of a forward pass
_MOST_DRAWS = 200


def evaluated(subject: Subject) -> Call:
    """The call of the schedule of `eval()` that is repeated."""
    return Call(mode="no_grad", length=_within(subject, _LENGTH))


def trained(subject: Subject) -> Call:
    """The call of the schedule of training passes that is repeated."""
    return Call(mode="train", length=_within(subject, _LENGTH))


def further_repeats(sp: BuiltModule, call: Call) -> int:
    """How many more equal calls there is time for: so many, where calls are cheap, that one in twenty is seen."""
    most = _MOST_FURTHER[sp.subject.profile]
    x = sp.input(call.length, call.batch)
    with torch.no_grad():
        each = nominal_seconds(lambda: sp(x)) * (1 if call.mode == "no_grad" else _OF_A_TRAINING_PASS)
    return min(most, int(_NOMINAL_SECONDS_FURTHER / each)) if most else 0


def evaluation_steps(subject: Subject, num_further: int = 0, far_longer: Sequence[int] = ()) -> list[Step]:
    """One call in `eval()` again and again, with other lengths, batches, modes, switches and copies between."""
    again, train = evaluated(subject), trained(subject)
    longer, shorter = (replace(again, length=_within(subject, n), batch=1) for n in (_LONGER, _SHORTER))
    between: list[Step] = [longer, shorter, replace(again, batch=4), replace(again, mode="eval"), shorter, longer]
    between += [Switch.STATE, Switch.COPY, Switch.TO, Switch.TRAIN, train, replace(again, batch=2), Switch.INTO_COPY]
    between += [Switch.BFLOAT16, *(replace(again, length=length, batch=1) for length in far_longer)]
    num_repeats = _REPEATS[subject.profile] + num_further
    kept_by_size: list[Step] = [Switch.BFLOAT16, replace(again, batch=ROWS_IN_BFLOAT16)]  # no call between them
    steps = [again, again, *_alternating(between, again), *kept_by_size, *_repeated(again, num_repeats)]
    return _offered(subject, steps)


def further_draws(subject: Subject, steps: list[Step]) -> list[Step]:
    """The steps, and four times as many draws of the last call: of a subject that draws, each is another chance.

    They are made with gradients where the subject has them in `eval()`: those must not depend on a draw either.
    """
    last = steps[-1]
    num_more = min(_MOST_DRAWS, 3 * sum(isinstance(step, Call) and step.draw > 0 for step in steps))
    if not isinstance(last, Call):
        return steps
    again = replace(last, mode="eval") if "eval" in subject.modes else last
    return [*steps, *(replace(again, draw=last.draw + 1 + index) for index in range(num_more))]


def training_steps(subject: Subject, num_further: int = 0) -> list[Step]:
    """One training pass again and again, with other lengths, batches, modes, switches and copies between."""
    again, call = trained(subject), evaluated(subject)
    longer, single = replace(again, length=_within(subject, _LONGER), batch=1), replace(again, batch=1)
    between: list[Step] = [longer, replace(again, batch=4), Switch.EVAL, Switch.STATE, call, replace(call, mode="eval")]
    between += [single, Switch.COPY, Switch.TO, Switch.BFLOAT16, longer]
    added = replace(again, accumulates=True)
    begin: list[Step] = [again, again, added, added, replace(again, wants_input_gradient=False)]
    num_repeats = _TRAINING_REPEATS[subject.profile] + num_further
    return _offered(subject, [*begin, *_alternating(between, again), *[again] * num_repeats])


def repeated_training(subject: Subject) -> list[Step]:
    """One training pass again and again, and nothing between."""
    return [trained(subject)] * _TRAINING_REPEATS[subject.profile]


def drawn_steps(subject: Subject) -> list[Step]:
    """Calls and training passes at several batches, each with random numbers of its own, in the order of a run."""
    again, train = evaluated(subject), trained(subject)
    steps: list[Step] = [again, again]
    for batch in _BATCHES:
        steps += [replace(again, batch=batch), replace(train, batch=batch)]
    steps += [Switch.STATE, Switch.COPY, Switch.TO, replace(again, mode="eval"), replace(train, accumulates=True)]
    for index in range(_TRAINING_REPEATS[subject.profile]):
        steps += [train, again] if index % 2 else [train]
    steps += [again] * _REPEATS[subject.profile]
    return _offered(subject, [_with_draw(step, index) for index, step in enumerate(steps)])


def _with_draw(step: Step, draw: int) -> Step:
    return replace(step, draw=draw) if isinstance(step, Call) else step


def _alternating(between: list[Step], again: Call) -> Iterator[Step]:
    for step in between:
        yield step
        yield again


def _repeated(again: Call, num_repeats: int) -> Iterator[Step]:
    yield from (replace(again, draw=1 + index) for index in range(num_repeats))


def _offered(subject: Subject, steps: list[Step]) -> list[Step]:
    """The steps that the subject's modes allow."""
    is_trained = "train" in subject.modes
    held = [step for step in steps if isinstance(step, Switch) or step.mode in subject.modes]
    return [step for step in held if is_trained or step is not Switch.TRAIN]


def _within(subject: Subject, length: int) -> int:
    return min(length, subject.max_length)
