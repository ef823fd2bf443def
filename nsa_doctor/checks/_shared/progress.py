"""Whether training passes differ because training goes on by a count or a generator that the module keeps."""

import random
from collections import Counter
from collections.abc import Sequence

import torch

from nsa_doctor.checks._shared.earlier import Replays
from nsa_doctor.probes.model.call_history import Call, Outcome
from nsa_doctor.probes.numerics.earlier_calls import Cause, Judge, Seen

_NUM_PASSES = 24


def is_progress(replays: Replays, seen: Seen, cause: Cause, judge: Judge) -> bool:
    """Whether the output changes with training passes alone, and does not come back to what it was or has no rule.

    A temperature that falls, one that rises and falls, and noise of the module's own generator do so on purpose; of a
    fault at every so many calls, half of the outputs and more are the same one.
    """
    own = [step for step in cause.steps if not (isinstance(step, Call) and step.mode == "train")]
    if seen.symptom.kind != "output" or (own and cause.kind not in ("sequence", "chance")):
        return False
    history, call = replays.fresh(), seen.outcome.call
    if any(_is_generator(value) for module in history.built.module.modules() for value in vars(module).values()):
        return True
    outcomes = [outcome for outcome in (history.step(call) for _ in range(1 + _NUM_PASSES)) if outcome is not None]
    kinds = _kinds(outcomes, judge)
    first_other = next((index for index, kind in enumerate(kinds) if kind), len(kinds))
    most_alike = max(Counter(kinds).values(), default=0)
    return 0 not in kinds[first_other:] or 2 * most_alike < len(kinds) - 1


def _kinds(outcomes: Sequence[Outcome], judge: Judge) -> list[int]:
    """Which outcomes are alike, by the number of the first such one among those that are not."""
    different: list[Outcome] = []
    kinds: list[int] = []
    for outcome in outcomes:
        kind = next((n for n, other in enumerate(different) if judge(other, outcome) is None), len(different))
        different += [outcome] * (kind == len(different))
        kinds.append(kind)
    return kinds


def _is_generator(value: object) -> bool:
    return isinstance(value, torch.Generator | random.Random) or hasattr(value, "bit_generator")
