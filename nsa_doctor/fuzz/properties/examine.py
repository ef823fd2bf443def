"""Tries one case on the loaded subject, and says what the subject offers to be tried."""

import warnings
from collections.abc import Iterator
from typing import Any

from nsa_doctor.core.errors import NotComparableError, SubjectFailedError
from nsa_doctor.core.facts import Violation
from nsa_doctor.core.lengths import boundary_lengths
from nsa_doctor.core.measurement import DTYPES, Trouble
from nsa_doctor.core.own_nsa import is_ours, ours
from nsa_doctor.fuzz.cases import IMPLS, Attention, Case, Choice, Grid, MaskRows, Pass, RangeRows, Reads, SlotRows
from nsa_doctor.fuzz.outcome import Failure, FuzzOutcome
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.subject.contract import Subject

_LONGEST = 160  # what is wrong at a length is wrong at a short one, if the length is there for a short geometry


def examine(case: Case, subject: Subject) -> FuzzOutcome:
    """Everything that does not hold for this case; an exception of the subject is one of these."""
    failures: list[Failure] = []
    with preserved_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_everything(subject.seed)
        try:
            failures.extend(_failures(case, subject))
        except NotComparableError as error:
            return FuzzOutcome(failures=tuple(failures), discarded=str(error))
        except SubjectFailedError as error:
            trouble = trouble_of(error, subject.packages)
            if trouble.kind == "out_of_memory":
                return FuzzOutcome(failures=tuple(failures), discarded=trouble.message)
            failures.append(_failure_of(trouble, type(error.caught.error).__name__))
    return FuzzOutcome(failures=tuple(failures))


def offers(subject: Subject) -> dict[str, Any]:
    """What strategies need to know: seams, sizes, lengths at which something changes."""
    sizes = {name: getattr(subject.geometry, name, None) for name in ("l", "d", "l_sel", "n_sel", "w")}
    longest = min(_LONGEST, subject.max_length)
    return {
        "is_nsa": is_ours(subject.packages),
        "seams": [name for name in ("spans", "select", "attend", "forward") if subject.offers(name)],
        "sizes": {name: size for name, size in sizes.items() if isinstance(size, int)},
        "lengths": [length for length in boundary_lengths(subject.geometry, longest) if length <= longest],
        "is_float": subject.input == "embeddings",
        "impls": _impls(subject.device) if is_ours(subject.packages) else {},
    }


def _impls(device: str) -> dict[str, tuple[list[str], str]]:
    """The dtypes in which each implementation of `nsa` can serve on a device, and why not in the others."""
    from nsa_doctor.adapters.nsa_alternatives import why_not
    from nsa_doctor.fuzz.properties.operators import LARGEST_HEAD

    reasons = {impl: {dtype: why_not(impl, device, dtype, LARGEST_HEAD) for dtype in DTYPES} for impl in IMPLS}
    return {
        impl: ([dtype for dtype in DTYPES if not whys[dtype]], next(filter(None, reversed(whys.values())), ""))
        for impl, whys in reasons.items()
    }


def _failure_of(trouble: Trouble, kind: str) -> Failure:
    if trouble.kind == "wrong_shape":
        return Failure(violation=Violation.WRONG_SHAPE, message=trouble.message, where=trouble.place)
    message = f"{trouble.phase} raises {trouble.message}"
    return Failure(violation=Violation.RAISES, name=f"raises {kind}", message=message, where=trouble.place)


def _failures(case: Case, subject: Subject) -> Iterator[Failure]:
    with ours():
        from nsa_doctor.fuzz.properties import attention, choice, passes, ranges, reads

    match case:
        case Grid() | SlotRows() | RangeRows() | MaskRows():
            assert subject.spans is not None
            yield from ranges.examine(case, subject.spans())
        case Reads():
            yield from reads.examine(case, subject.device)
        case Choice():
            yield from choice.examine(case, subject)
        case Attention():
            yield from attention.examine(case, subject)
        case Pass():
            yield from passes.examine(case, subject)
