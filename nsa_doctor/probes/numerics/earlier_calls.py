"""Whether equal calls on one module give equal results, and the fewest earlier steps after which one does not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from nsa_doctor.probes.model.call_history import Call, CallHistory, Outcome, Step, Switch
from nsa_doctor.probes.numerics.compare import departure

SymptomKind = Literal["raises", "not finite", "input", "output", "no gradient", "gradient"]
CauseKind = Literal["always", "draw", "again", "step", "count", "sequence", "chance"]
_ROUNDINGS = 64.0  # sums in another order, as atomics on a GPU make them
_CONFIRMATIONS = 6
_LOOKS = 12  # at two equal calls, that differ by chance or not at all
_TRIES = 64


@dataclass(frozen=True)
class Symptom:
    """What is wrong with the outcome of a call, in words."""

    kind: SymptomKind
    words: str


@dataclass(frozen=True)
class Cause:
    """Steps that show it at the last of them on a fresh module, as often as so many tries saw it.

    `always`: the call alone; `draw`: by the random numbers drawn; `again`: at the second of two equal calls; `step`:
    after one other step; `count`: after so many equal calls; `sequence`: after all of these steps; `chance`: none of
    these steps bring it about.
    """

    kind: CauseKind
    steps: tuple[Step, ...]
    num_seen: int = 1
    num_tried: int = 1

    @property
    def words(self) -> str:
        """When it is seen: `after a call in eval() at S=67, B=1`."""
        num_calls = sum(isinstance(step, Call) for step in self.steps)
        match self.kind:
            case "always":
                return "whatever came before"
            case "draw":
                return f"in {self.num_seen} of {self.num_tried} draws of random numbers"
            case "again":
                is_plain = isinstance(self.steps[0], Call) and _undrawn(self.steps[0]) == _undrawn(self.steps[-1])
                return "at the second of two equal calls" if is_plain else f"than {self.steps[0]}"
            case "step":
                return f"after {self.steps[-2]}"
            case "count":
                return f"at call {num_calls} of equal calls"
            case "sequence":
                return f"after {num_calls - 1} earlier calls"
            case "chance":
                return f"in {self.num_seen} of {self.num_tried} equal calls of one seed"


Judge = Callable[[Outcome | None, Outcome], Symptom | None]
"""What is wrong with an outcome; the first is that of the first equal call, where there was one."""


@dataclass(frozen=True)
class Seen:
    """A symptom in the outcome of a call, the first call that it equals, and the steps that were made before it."""

    symptom: Symptom
    outcome: Outcome
    reference: Call | None
    before: tuple[Step, ...]


def first_seen(history: CallHistory, steps: Sequence[Step], judge: Judge) -> Seen | None:
    """The first call of these steps whose outcome is wrong."""
    references: dict[Call, Outcome] = {}
    for index, step in enumerate(steps):
        outcome = history.step(step)
        if outcome is None:
            continue
        reference = references.get(outcome.call.key)
        symptom = judge(reference, outcome)
        if symptom is not None:
            first = None if reference is None else reference.call
            return Seen(symptom, outcome, first, tuple(steps[:index]))
        references.setdefault(outcome.call.key, outcome)
    return None


def fails(_reference: Outcome | None, outcome: Outcome) -> Symptom | None:
    """An outcome that is an exception, or holds NaN or infinity."""
    if outcome.raised:
        phase = f" in {outcome.failure.phase}" if outcome.failure is not None else ""
        return Symptom("raises", f"raises {outcome.raised}{phase}")
    if name := outcome.nonfinite:
        return Symptom("not finite", f"{name} is not finite")
    return None


def differs_by(eps: float) -> Judge:
    """Judges whether an outcome is another than that of the first equal call, beyond rounding of this precision."""

    def judge(reference: Outcome | None, outcome: Outcome) -> Symptom | None:
        if (failed := fails(None, outcome)) is not None:
            return failed
        if outcome.is_input_changed and not (reference is not None and reference.is_input_changed):
            return Symptom("input", "the call overwrites its input")
        if reference is None:
            return None
        return _other_output(reference, outcome, eps) or _other_gradient(reference, outcome, eps)

    return judge


def cause_of(fresh: Callable[[], CallHistory], seen: Seen, judge: Judge) -> Cause:
    """The fewest of the steps before it that show it on a fresh module."""
    first: tuple[Step, ...] = () if seen.reference is None else (seen.reference,)
    last = seen.outcome.call

    def shows(*steps: Step) -> bool:
        return all(_last_symptom(fresh(), (*first, *steps), judge) for _ in range(_CONFIRMATIONS))

    if shows(last):
        plain = replace(last, draw=0 if seen.reference is None else seen.reference.draw)
        if plain != last and not shows(plain):
            return _rated(fresh, Cause("draw", (*first, last)), judge, is_drawn=True)
        return Cause("again" if first else "always", (*first, last))
    if any(_last_symptom(fresh(), (*first, last), judge) for _ in range(_LOOKS)):
        return _rated(fresh, Cause("chance", (*first, last)), judge, is_drawn=False)
    for step in sorted(dict.fromkeys(map(_undrawn, seen.before)), key=_simplicity):
        if step != _undrawn(last) and shows(step, last):
            return Cause("step", (*first, step, last))
    num_calls = sum(isinstance(step, Call) for step in seen.before) - len(first)
    for count in sorted({num_calls, sum(_goes_backward(step) for step in seen.before) - len(first)}):
        if count > 0 and shows(*[last] * (count + 1)):
            return Cause("count", (*first, *[last] * (count + 1)))
    before = seen.before[len(first) :]
    if shows(*before, last):
        return Cause("sequence", (*first, *before, last))
    return _rated(fresh, Cause("chance", (*first, last)), judge, is_drawn=False)


def _rated(fresh: Callable[[], CallHistory], cause: Cause, judge: Judge, *, is_drawn: bool) -> Cause:
    """The cause with how often equal calls, of other draws or of the same one, show it."""
    history, last = fresh(), cause.steps[-1]
    assert isinstance(last, Call)
    reference = history.make(cause.steps[:-1])
    calls = [replace(last, draw=last.draw + index if is_drawn else last.draw) for index in range(_TRIES)]
    outcomes = [history.step(call) for call in calls]
    seen = [outcome for outcome in outcomes if outcome is not None and judge(reference, outcome) is not None]
    num_seen = (
        min(len(seen), len(calls) - len(seen)) if cause.kind == "chance" else len(seen)
    )  # the first may be the odd
    return replace(cause, num_seen=max(1, num_seen), num_tried=len(calls))


def _last_symptom(history: CallHistory, steps: Sequence[Step], judge: Judge) -> Symptom | None:
    """What is wrong with the last of these calls, the first of them being its reference where it is equal."""
    reference: Outcome | None = None
    outcome: Outcome | None = None
    for index, step in enumerate(steps):
        outcome = history.step(step)
        if index == 0 and len(steps) > 1:
            reference = outcome
    is_equal = reference is not None and outcome is not None and reference.call.key == outcome.call.key
    return None if outcome is None else judge(reference if is_equal else None, outcome)


def _undrawn(step: Step) -> Step:
    return replace(step, draw=0) if isinstance(step, Call) else step


def _simplicity(step: Step) -> int:
    if isinstance(step, Switch):
        return 0
    return 1 if step.mode == "no_grad" else 2


def _goes_backward(step: Step) -> bool:
    return isinstance(step, Call) and step.mode != "no_grad"


def _other_output(reference: Outcome, outcome: Outcome, eps: float) -> Symptom | None:
    assert outcome.output is not None
    if reference.output is None or reference.nonfinite:
        return Symptom("output", "the output is finite, and that of the first equal call was not")
    scale = reference.output.double().abs().flatten(2).amax(-1)
    found = departure(outcome.output, reference.output, _ROUNDINGS * eps * scale)
    return None if found is None else Symptom("output", found.text)


def _other_gradient(reference: Outcome, outcome: Outcome, eps: float) -> Symptom | None:
    has_input = reference.call.wants_input_gradient and outcome.call.wants_input_gradient
    expected, found = (_gradients(each, has_input) for each in (reference, outcome))
    if missing := sorted(expected.keys() - found.keys()):
        return Symptom("no gradient", f"{missing[0]} gets no gradient")
    largest = max((_largest(gradient) for gradient in expected.values()), default=0.0)
    bound = _ROUNDINGS * eps * largest
    for name, gradient in found.items():
        error = _largest(gradient - expected[name] if name in expected else gradient)
        if not error <= bound:
            return Symptom("gradient", f"the gradient of {name} differs by {error:.2g} (tolerance {bound:.1g})")
    return None


def _gradients(outcome: Outcome, has_input: bool) -> dict[str, Tensor]:
    found = {name: each.to_dense() for name, each in outcome.gradients.items() if has_input or name != "the input"}
    return {name: torch.view_as_real(each) if each.is_complex() else each.double() for name, each in found.items()}


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
