"""Steps that are not finite: which, why the run refused them, and where it says the value was born."""

import math
import re
from collections.abc import Sequence

from nsa_doctor.artifacts.training_run.record import Beat, RunRecord
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import escaped

REFUSED = "not finite: "
_ADVICE = "; the weights are those before the step"
_LONGEST = 500
_MOST_NAMES = 3
_MODULE = r"(?:(?P<module>[\w.]+) \((?P<kind>[\w.]+)\)|(?P<only>[\w.]+))"
_BORN = re.compile(
    rf"is born in {_MODULE}(?:, [^;]*?)?(?: at (?P<file>[^\s,;]+):(?P<line>\d{{1,9}}))?, in the \w+ pass"
)
_HELD = re.compile(rf"(?:parameter|buffer) \S+ of {_MODULE} held ")


def is_not_finite(beat: Beat) -> bool:
    """Whether a step's loss or gradient is not, or the run says so."""
    loss, norm = beat.loss, beat.grad_norm
    return (
        (loss is not None and not math.isfinite(loss))
        or (norm is not None and not math.isfinite(norm))
        or beat.msg.startswith(REFUSED)
    )


def what(beat: Beat) -> str:
    """`the loss is nan`, or that only the gradient is not finite."""
    if beat.loss is not None and not math.isfinite(beat.loss):
        return f"the loss is {beat.loss}"
    return f"the loss is finite and the gradient {'is not' if beat.grad_norm is None else f'norm is {beat.grad_norm}'}"


def made_again(beats: Sequence[Beat]) -> set[tuple[int, int]]:
    """Ranks and steps whose last line is finite: a session that followed came past them."""
    bad = {(beat.rank, beat.step) for beat in beats if is_not_finite(beat)}
    last = {key: beat for beat in beats if (key := (beat.rank, beat.step)) in bad}
    return {(rank, step) for (rank, step), beat in last.items() if step is not None and not is_not_finite(beat)}


def last_finite(beats: Sequence[Beat], bad: Beat) -> int | None:
    """The last step before it."""
    steps = [beat.step for beat in beats if beat.step is not None and bad.step is not None and beat.step < bad.step]
    return max(steps, default=None)


def reason(record: RunRecord, step: int | None) -> str:
    """What a tracer saw of the step; else the run's own sentence, else the parameters it named; empty without any."""
    for facts in (each for each in record.nonfinite if each.get("step") == step):
        traced, names = facts.get("traced"), facts.get("parameters")
        if isinstance(traced, str) and traced:
            return escaped(traced[:_LONGEST])
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            return escaped(f"the gradient of {', '.join(names[:_MOST_NAMES])}{more}"[:_LONGEST]) + " is not finite"
    message = next((beat.msg for beat in record.events if beat.step == step and beat.msg.startswith(REFUSED)), "")
    return escaped(message.removeprefix(REFUSED).partition(_ADVICE)[0][:_LONGEST])


def birthplace(sentence: str) -> Place:
    """The module and the line that a tracer's sentence names; nowhere where it names none."""
    found = _BORN.search(sentence) or _HELD.search(sentence)
    if found is None:
        return Place()
    parts = found.groupdict()
    return Place(
        module=parts["module"] or "",
        module_class=parts["kind"] or parts["only"] or "",
        file=parts.get("file") or "",
        line=int(parts.get("line") or 0),
    )
