"""Calls in the subject's own precision after one under autocast, held against those of a module that had none."""

from dataclasses import dataclass, replace

import torch

from nsa_doctor.checks._shared.earlier import Replays
from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.call_history import Call, CallHistory, Outcome
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.numerics.autocast_regions import autocast_to
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.probes.numerics.earlier_calls import Symptom, differs_by
from nsa_doctor.subject.contract import Subject

_LENGTH, _LONGER = 320, 384  # bfloat16 has not all whole numbers beyond 256
_CONFIRMATIONS = 2
_HALF = torch.bfloat16


@dataclass(frozen=True)
class _Way:
    """Calls before the one that is compared: those of float32, and the length of the one under autocast."""

    before: tuple[Call, ...]
    length: int

    def made_on(self, history: CallHistory, *, is_autocast: bool = True) -> bool:
        """Make these calls; whether all of them went well."""
        device = torch.device(history.built.subject.device).type
        outcomes = [history.step(call) for call in self.before]
        with autocast_to(_HALF, device, enabled=is_autocast):
            outcomes.append(history.step(Call(mode="no_grad", length=self.length, batch=1)))
        return all(each is not None and not each.raised and not each.nonfinite for each in outcomes)


@dataclass(frozen=True)
class _Seen:
    """What is wrong with a call behind these, and the call as it went."""

    way: _Way
    symptom: Symptom
    outcome: Outcome


def after_autocast(subject: Subject) -> Finding | None:
    """A call in float32 whose result is another after one under autocast: a table is then kept as autocast made it."""
    if subject.dtype != "float32" or subject.is_slow or "no_grad" not in subject.modes:
        return None
    replays = Replays(subject, subject.dtype, "eval")
    call = Call(mode="no_grad", length=min(_LENGTH, subject.max_length), batch=1)
    begun = replays.fresh()
    reference = begun.step(call)
    if reference is None or reference.raised or reference.nonfinite:
        return None
    longer = min(_LONGER, subject.max_length)
    ways = [_Way((call,), longer)] if longer > call.length else []
    if not reference.drawn_from:  # what a first call draws may be other numbers in another dtype
        ways.append(_Way((), call.length))
    for way in ways:
        used = begun if way.before else replays.fresh()  # the call before is the one that was just made
        seen = _seen(replace(way, before=()), reference, used, is_autocast=True)
        if seen is not None and all(_is_of_autocast(replays, way, reference) for _ in range(_CONFIRMATIONS)):
            return _finding(replays, replace(seen, way=way))
    return None


def _is_of_autocast(replays: Replays, way: _Way, reference: Outcome) -> bool:
    """Whether it is seen again, and not where the same calls are made without autocast."""
    seen, plain = (_seen(way, reference, replays.fresh(), is_autocast=each) for each in (True, False))
    return seen is not None and plain is None


def _seen(way: _Way, reference: Outcome, used: CallHistory, *, is_autocast: bool) -> _Seen | None:
    outcome = used.step(reference.call) if way.made_on(used, is_autocast=is_autocast) else None
    symptom = None if outcome is None else differs_by(torch.finfo(torch.float32).eps)(reference, outcome)
    return None if outcome is None or symptom is None else _Seen(way, symptom, outcome)


def _finding(replays: Replays, seen: _Seen) -> Finding:
    place, operation = _origin(replays, seen)
    call, symptom, after = seen.outcome.call, seen.symptom, f"a call under autocast to bfloat16 at S={seen.way.length}"
    is_plain = symptom.kind in ("raises", "not finite")
    what = f"{symptom.words}, after {after}: {call}" if is_plain else f"{call} gives another result after {after}"
    return Finding(
        code="FWD210",
        message=f"{what}{'' if is_plain else f': {symptom.words}'}{f'; first in {operation}' if operation else ''}",
        where=place,
        evidence={
            "symptom": symptom.kind,
            **({"kind": "raised"} if symptom.kind == "raises" else {}),
            "cause": "autocast",
            "length": call.length,
            "batch": call.batch,
            "mode": call.mode,
            "operation": operation,
            **error_evidence(symptom.words),
        },
        repro=command_for(replays.subject, "FWD210"),
    )


def _origin(replays: Replays, seen: _Seen) -> tuple[Place, str]:
    """The place in the subject, and the operation where one is known."""
    if seen.outcome.failure is not None:
        return trouble_of(seen.outcome.failure, replays.subject.packages).place, ""
    first, used, call = replays.fresh(), replays.fresh(), seen.outcome.call
    seen.way.made_on(first, is_autocast=False)  # so that both read what they keep
    seen.way.made_on(used)
    try:
        found = first_divergence(first.built, lambda: first.output(call), lambda: used.output(call), {})
    except (SubjectFailedError, NotComparableError):  # while operations are watched it goes another way
        return definition_place(first.built.module), ""
    return (found.place, found.operation) if found.operation else (definition_place(first.built.module), "")
