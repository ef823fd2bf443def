"""What a check's calls did on the way, as findings of the checks that answer such facts."""

import time
from collections.abc import Iterator
from dataclasses import replace

from nsa_doctor.core import registry
from nsa_doctor.core.allowance import Allowance
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.facts import Fact
from nsa_doctor.core.finding import Finding, Scalar
from nsa_doctor.core.measurement import GRADIENTS, Census, Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import counted, joined
from nsa_doctor.core.torch_errors import error_evidence
from nsa_doctor.probes.hooks.phase import heard_by
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.loops import preserved_loop
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.observing import Call, Observation, Observer
from nsa_doctor.probes.model.snapshot import Snapshot
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.numerics.observed_origin import Located, locate
from nsa_doctor.probes.numerics.raised_origin import origin_of_call
from nsa_doctor.subject.contract import Subject

_MOST_LOCATED = (
    4  # output and gradients, in two modes; each costs a run of the check up to that call, and some traced passes
)
_LOCATING_SECONDS = 10.0  # of one check: its own answer must not be late for it


def findings_of(observer: Observer, check: Check, subject: Subject, locating: Allowance) -> Iterator[Finding]:
    """One finding for each observation, with its place; `subject` is the one that the check was given.

    `locating` are the seconds that may be spent on places by all checks together: the same values that are not finite
    come up in many, and are one cause.
    """
    with locating.spending(_LOCATING_SECONDS) as until:
        yield from _findings(observer, check, subject, until)


def _findings(observer: Observer, check: Check, subject: Subject, until: float) -> Iterator[Finding]:
    located, raised = 0, 0
    for observation in observer.observations:
        if observation.failure is not None:
            found_here = list(_raised(observation, check, subject, is_first=raised == 0))
            raised += len(found_here)
            yield from found_here
            continue
        found = None
        if located < _MOST_LOCATED and time.monotonic() < until:
            located += 1
            found = _located(observation, check, subject, until)
        yield _nonfinite(observation, found, check, subject)


def _raised(observation: Observation, check: Check, subject: Subject, *, is_first: bool) -> Iterator[Finding]:
    """Nothing where memory ran out or the batch is too small to be normed: that is no fault of the subject's."""
    assert observation.failure is not None
    trouble = trouble_of(observation.failure, subject.packages)
    fact = {"raised": Fact.RAISED, "wrong_shape": Fact.WRONG_SHAPE}.get(trouble.kind)
    if fact is None:
        return
    message = f"{trouble.message} in {trouble.phase} {_conditions(observation.call, check)}"
    if fact is Fact.RAISED:
        snapshot = _snapshot(observation, check, subject) if is_first else None
        message = f"the subject raises {message}{origin_of_call(subject, snapshot) if snapshot else ''}"
    yield Finding(
        code=registry.answering(fact).manual.code,
        message=message,
        where=trouble.place,
        evidence={**_evidence(observation, check), "kind": trouble.kind, **error_evidence(trouble.message)},
        repro=command_for(subject, check.manual.code),
    )


def _located(observation: Observation, check: Check, subject: Subject, until: float) -> Located:
    snapshot = _snapshot(observation, check, subject)
    return Located() if snapshot is None else locate(subject, snapshot, observation.kind == "gradients", until)


def _snapshot(observation: Observation, check: Check, subject: Subject) -> Snapshot | None:
    """Run the check again up to that call."""
    observer = Observer(subject, capture=observation.call.number)
    with preserved_state(), preserved_loop(subject.train_step), heard_by(observer):
        attempt(lambda: tuple(check.run(observer.observed())))
    return observer.snapshot


def _nonfinite(observation: Observation, found: Located | None, check: Check, subject: Subject) -> Finding:
    call, census, origin = observation.call, observation.census, None if found is None else found.origin
    assert census is not None
    what = "gradients" if census.name == GRADIENTS else f"rows of the {'loss' if call.seam == 'loss' else 'output'}"
    verb = "is" if census.num_bad_rows == 1 else "are"
    message = f"{census.num_bad_rows} of {census.num_rows} {what} {verb} not finite {_conditions(call, check)}"
    message += f": {joined([f'{count:,} {kind}' for count, kind in _counts(census) if count])}"
    if origin is None:
        reason = "it was not looked for" if found is None else "the same call is finite when it is made again"
        message += f"; where that begins is not known: {reason}"
        place = Place() if call.module is None else definition_place(call.module)
    else:
        message += f"; the first {origin.value} comes from {origin.operation} ({origin.phase})"
        place = origin.place
    evidence = _evidence(observation, check)
    if found is not None and found.num_repeats:
        message += f"; seen in {found.num_seen} of {found.num_repeats} repetitions of the call"
        evidence |= {"num_seen": found.num_seen, "num_repeats": found.num_repeats}
    evidence |= {} if origin is None else origin.growth
    evidence |= {"target": census.name, "num_nan": census.num_nan, "num_inf": census.num_inf}
    return Finding(
        code=registry.answering(_fact(observation, subject)).manual.code,
        message=message,
        where=place if place.module_class else replace(place, module_class=type(call.module).__name__),
        evidence=evidence,
        repro=command_for(subject, check.manual.code),
    )


def _counts(census: Census) -> tuple[tuple[int, str], ...]:
    return (census.num_nan, "NaN"), (census.num_inf, "inf")


def _fact(observation: Observation, subject: Subject) -> Fact:
    call = observation.call
    is_narrow = call.has_autocast or (call.dtype in ("bfloat16", "float16") and call.dtype != subject.dtype)
    if is_narrow:
        return Fact.NONFINITE_BY_DTYPE
    return Fact.NONFINITE_GRADIENT if observation.kind == "gradients" else Fact.NONFINITE_OUTPUT


def _conditions(call: Call, check: Check) -> str:
    """The length, and in brackets what else: at S=17 (batch of 3, train, call 4 of its check)."""
    if call.seam == "build":
        return f"(after {counted(call.number, 'call')} of {check.manual.code})"
    parts = [f"batch of {call.batch}"] if call.batch > 1 else []
    parts += [call.mode] + ([call.dtype] if call.dtype != "float32" else []) + (["autocast"] * call.has_autocast)
    return f"at S={call.length} ({', '.join(parts)}, call {call.number} of {check.manual.code})"


def _evidence(observation: Observation, check: Check) -> dict[str, Scalar]:
    call = observation.call
    return {
        "lengths": str(call.length),
        "modes": call.mode,
        "dtypes": call.dtype,
        "batch": call.batch,
        "call": call.number,
        "seam": call.seam,
        "seen_by": check.manual.code,
    }
