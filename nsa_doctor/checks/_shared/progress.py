"""Whether training passes differ because training goes on by a count or a generator that the module keeps."""

import random

import torch

from nsa_doctor.checks._shared.earlier import Replays
from nsa_doctor.probes.model.call_history import Call
from nsa_doctor.probes.numerics.earlier_calls import Cause, Judge, Seen

_NUM_PASSES = 24


def is_progress(replays: Replays, seen: Seen, cause: Cause, judge: Judge) -> bool:
    """Whether the output changes with training passes alone and does not come back to what it was.

    A temperature that falls and noise of the module's own generator do so on purpose; a fault at every so many calls
    gives the first output again.
    """
    own = [step for step in cause.steps if not (isinstance(step, Call) and step.mode == "train")]
    if seen.symptom.kind != "output" or (own and cause.kind not in ("sequence", "chance")):
        return False
    history, call = replays.fresh(), seen.outcome.call
    if any(_is_generator(value) for module in history.built.module.modules() for value in vars(module).values()):
        return True
    first = history.step(call)
    differing = [
        judge(first, outcome) is not None
        for outcome in (history.step(call) for _ in range(_NUM_PASSES))
        if outcome is not None
    ]
    return True not in differing or all(differing[differing.index(True) :])


def _is_generator(value: object) -> bool:
    return isinstance(value, torch.Generator | random.Random) or hasattr(value, "bit_generator")
