"""Where the gradient of one call goes another way than that of an equal call, made by another module or elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe, Differential
from nsa_doctor.probes.gradients.gradient_fault import blame, calls_of, last_differing, where_passes_part
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.call_history import Call, CallHistory
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.measure import trouble_of

_LOOKS = 24  # at what differs by chance, or at every so many calls


def probe_of(history: CallHistory, call: Call) -> DerivativeProbe:
    """Of that call, on the module as its history has left it."""
    history.enter(call.mode)
    sp = history.built
    seeded = BuiltModule(replace(sp.subject, seed=sp.subject.seed + call.draw), sp.module, sp.dtype)
    probe = DerivativeProbe(seeded, sp.input(call.length, call.batch))
    probe.cotangent = make_cotangent(probe.base, sp.subject.seed)  # the same for every draw
    return probe


def gradient_fault(first: CallHistory, call: Call, other: CallHistory, other_call: Call) -> tuple[Place, str] | None:
    """Where the second of two calls that should have equal gradients departs from the first; None where it does not."""
    expected = probe_of(first, call).differentiate(0, is_followed=True)
    return _departs(other, other_call, expected, calls_of(expected))


def slopes_of(history: CallHistory, call: Call, symptom: str) -> dict[str, Any]:
    """The gradient along directions that another process draws alike, and the symptom to look for, as plain values.

    {} where there is no gradient.
    """
    try:
        found = probe_of(history, call).differentiate(0, is_followed=True)
    except (SubjectFailedError, NotComparableError):
        return {}
    return {"slopes": found.slopes, "sizes": found.sizes, "calls": calls_of(found), "symptom": symptom}


def departure_from(history: CallHistory, call: Call, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Where a call departs from what `slopes_of` gave, as plain values: place and operation; {} where nowhere.

    With another output as the `symptom` its gradients say nothing, and where calls part says all.
    """
    for _ in range(_LOOKS if "slopes" in expected else 0):
        try:
            slopes = Differential(expected["slopes"], [], 0.0, expected["sizes"])
            found = _departs(history, call, slopes, expected["calls"], is_of_output=expected["symptom"] == "output")
        except NotComparableError:  # followed, it goes another way
            continue
        except SubjectFailedError as failure:
            if expected["symptom"] != "raises":
                continue
            place = trouble_of(failure, history.built.subject.packages).place
            return {"place": asdict(place), "operation": ""}
        if found is not None:
            return {"place": asdict(found[0]), "operation": found[1]}
    return {}


def _departs(
    history: CallHistory,
    call: Call,
    expected: Differential,
    calls: Sequence[Sequence[Any]],
    *,
    is_of_output: bool = False,
) -> tuple[Place, str] | None:
    probe = probe_of(history, call)
    found = probe.differentiate(0, is_followed=True)
    number = last_differing(probe.dtype, expected, found.slopes)
    if number is None and not is_of_output:
        return None
    place, what = where_passes_part(probe, found, calls)
    if place.file or number is None or is_of_output:
        return (place, what) if place.file else None
    return blame(probe, found, number)[:2]
