"""How long a sequence a foreign module can be examined at: what it declares to serve, and what is too much work."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from nsa_doctor.adapters.refusals import in_whole_multiples
from nsa_doctor.core.check import Profile
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.lengths import LARGEST_LENGTH
from nsa_doctor.core.measurement import Point
from nsa_doctor.core.pace import SHORT, SLOW_SHORT_CALL, Pace
from nsa_doctor.probes.model.deliberate import is_on_purpose
from nsa_doctor.probes.model.needed_time import needed_seconds
from nsa_doctor.probes.model.nominal_time import nominal_seconds
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.probes.model.tables import Table, table_read_beyond, tables_too_short
from nsa_doctor.subject.contract import Subject, WrongOutputError

_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_BEYOND = 2093
_SECONDS = 0.15  # of a machine of fixed speed: how far is examined must not depend on what else runs
_MOST_SECONDS = 4 * _SECONDS  # of this one, for code whose work is not that of tensors
_MOST_TIMES_COUNTED = 8.0  # of a busy machine, for work that is that of tensors
_SHORTEST, _FAR_TOO_LONG = 4, 2.0  # tokens, where the first length takes more than so many seconds
_WORTH_COUNTING = 8.0  # seconds: beyond, a pass that counts costs more than it can tell
_FEWEST_SHARES = 2
_ADDED = 16  # a call may add one token for so many of its own, which are counted by what declares how many it serves
_LIMITS = (
    *("max_length", "max_len", "max_seq_len", "max_seq_length", "max_sequence_length", "max_position_embeddings"),
    *("n_positions", "n_ctx", "block_size", "context_length", "seq_len", "seq_length"),
)


def within_limits(
    subject: Subject, module: nn.Module, asking: Callable[[int], None], avoid: Collection[int], profile: Profile
) -> Subject:
    """The subject with the `max_length` its module serves, tried without gradients at growing lengths.

    A length at which it raises is the module's own limit when a size in it says so (it is declared, longer ones are
    refused, or what raises was given a table of that size, or one cut short), when it returns so many tokens of any
    more, or when it reads beyond the end of a table of as many rows that it owns at every greater length, unless it
    declares to serve twice as long; otherwise it stays within what is examined, and is a finding there. What it refuses
    on purpose is no length that it serves. `asking` gets each length before it is tried. Where calls are slow, it is
    the length that leaves time for what the profile has. One that serves all of them serves longer ones, unless it
    declares how long.
    """
    subject = _in_whole_multiples(subject, module, asking)
    works = 0
    for length in _LENGTHS:
        if length in avoid:
            continue
        seconds = _asked_seconds(subject, module, length, asking)
        if seconds is None and not works:
            works = 1 if _asked_seconds(subject, module, 1, asking) is not None else 0
            if not works:
                continue  # too short: what it raises there is a finding
        if seconds is None:
            limit, why = _limit(subject, module, works, length, asking)
            if limit is None:
                return replace(subject, max_length=max(length, works))
            note = f"examined up to S={limit}, the longest the subject serves{why}"
            return replace(subject, max_length=limit, notes=(*subject.notes, note))
        works = length
        asking(length)
        counted = _counted_seconds(subject, module, length, seconds)
        subject = _noting(subject, length, seconds, counted)
        if length < _LENGTHS[-1] and (why := _too_much(seconds, counted)):
            note = f"examined up to S={length}: {why}"
            return _paced(_with_a_shorter(replace(subject, max_length=length), module, asking), profile, note)
    if not works:
        return replace(subject, max_length=_LENGTHS[0])
    asking(_BEYOND)
    serves_more = _seconds(subject, module, _BEYOND) is not None
    longest = (_declared(module) or LARGEST_LENGTH) if serves_more else 0
    return _paced(replace(subject, max_length=works, longest=longest), profile)


def within_time(
    subject: Subject, module: nn.Module, asking: Callable[[int], None], avoid: Collection[int], profile: Profile
) -> Subject:
    """The subject, whose `max_length` was declared; a lesser one where calls are too slow for what the profile has."""
    subject = _in_whole_multiples(subject, module, asking)
    for length in _LENGTHS:
        if length in avoid or length > subject.max_length:
            continue
        seconds = _asked_seconds(subject, module, length, asking)
        if seconds is None:
            return subject
        asking(length)
        subject = _noting(subject, length, seconds, _counted_seconds(subject, module, length, seconds))
        if seconds > _MOST_SECONDS:
            break
    return _paced(_with_a_shorter(subject, module, asking), profile)


def _in_whole_multiples(subject: Subject, module: nn.Module, asking: Callable[[int], None]) -> Subject:
    def refusal(length: int) -> SubjectFailedError | None:
        asking(length)
        return _failure(subject, module, length)

    return in_whole_multiples(subject, module, refusal)


def _with_a_shorter(subject: Subject, module: nn.Module, asking: Callable[[int], None]) -> Subject:
    """How long a few tokens take as well, where the shortest length tried takes far too long: less, if it is a loop."""
    known = subject.call_seconds
    if known[0][1] <= _FAR_TOO_LONG:
        return subject
    asking(_SHORTEST)
    seconds = _seconds(subject, module, _SHORTEST)
    if seconds is None or 2 * seconds > known[0][1]:
        return subject
    return replace(subject, call_seconds=((_SHORTEST, seconds), *known))


def _paced(subject: Subject, profile: Profile, note: str = "") -> Subject:
    """The subject up to the length that its pace allows, and a note of why it is no longer."""
    pace = Pace.of(subject.call_seconds, profile)
    if pace is not None:
        note = pace.note
        subject = replace(subject, max_length=pace.length)
    return replace(subject, notes=(*subject.notes, note)) if note else subject


def _asked_seconds(subject: Subject, module: nn.Module, length: int, asking: Callable[[int], None]) -> float | None:
    """How long a forward pass takes, once whatever it compiles or loads at first is there; None when it raises."""
    asking(length)
    seconds = _seconds(subject, module, length)
    if seconds is not None and seconds > (_MOST_SECONDS if length > SHORT else SLOW_SHORT_CALL):
        asking(length)
        seconds = _seconds(subject, module, length)
    return seconds


def _limit(
    subject: Subject, module: nn.Module, works: int, fails: int, asking: Callable[[int], None]
) -> tuple[int | None, str]:
    """The longest length that works, where the module declares it, and by what; None when it fails otherwise."""
    too_long = fails
    while works + 1 < too_long:
        middle = (works + too_long) // 2
        asking(middle)
        works, too_long = (middle, too_long) if _seconds(subject, module, middle) is not None else (works, middle)
    failures = [_failure(subject, module, length) for length in (works + 1, works + 2, works + 3, 2 * works)]
    always = all(failures)
    if {_length_returned(each) for each in failures} == {works}:
        return works, f": of longer ones it returns {works} tokens"
    fresh = subject.build(subject.seed)  # what one call keeps may be too short for the next: that is no limit
    if not always or _seconds(subject, fresh, works + 1) is not None:
        return None, ""
    table = table_read_beyond(module, lambda: _forward(subject, module, works + 1))
    if table is not None and max(table.shape) < works:
        return None, ""  # it is read at what is computed of positions, and may have to be clamped
    are_refused = all(each and is_on_purpose(each, subject.packages) for each in failures)
    short = tables_too_short(module, lambda: _forward(subject, module, works + 1))
    if works in _sizes(module) and (are_refused or works == _declared(module) or _are_of(works, short)):
        return works, ""
    if _declared(module) <= works + works // _ADDED and are_refused:
        return works, f": it refuses longer ones, by {failures[0].caught.sentence}" if failures[0] else ""
    if table is None or _declared(module) > _FEWEST_SHARES * works:
        return None, ""
    return works, f": beyond it, it reads past the end of {table}"


def _length_returned(failure: SubjectFailedError | None) -> int | None:
    """How many tokens came back where that is not how many were given; None where none did, or more."""
    error = failure.caught.error if failure is not None else None
    asked = error.asked if isinstance(error, WrongOutputError) else None
    if asked is None or len(asked.shape) < 2 or asked.shape[1] >= asked.length:
        return None
    return asked.shape[1]


def _are_of(length: int, tables: Iterable[Table]) -> bool:
    """Whether one of them is of that length."""
    return any(length in table.shape for table in tables)


def _counted_seconds(subject: Subject, module: nn.Module, length: int, seconds: float) -> float | None:
    """What a forward pass takes by counted work; None when it cannot be counted, or takes too long to be."""
    if seconds > _WORTH_COUNTING:
        return None
    counted = attempt(lambda: nominal_seconds(lambda: _forward(subject, module, length)))
    return None if isinstance(counted, Caught) else counted


def _noting(subject: Subject, length: int, seconds: float, counted: float | None) -> Subject:
    """The subject with how slow a pass is by itself: a machine that is slow or busy is no fault of a pass."""
    is_explained = counted is not None and seconds <= _MOST_TIMES_COUNTED * counted
    slow = min(seconds, counted) if is_explained and counted is not None else seconds
    return replace(subject, call_seconds=(*subject.call_seconds, (length, slow)))


def _too_much(seconds: float, counted: float | None) -> str:
    """Why no longer call is made: by counted work, and by this machine's time where that says more; or nothing."""
    if counted is not None and counted > _SECONDS:
        return "a longer call is more work than this examination allows"
    return "longer calls take too long on this machine" if seconds > _MOST_SECONDS else ""


def _seconds(subject: Subject, module: nn.Module, length: int) -> float | None:
    """How long a forward pass takes, without what it waits for a processor; None when it raises."""
    try:
        return needed_seconds(lambda: _forward(subject, module, length))
    except SubjectFailedError:
        return None


def _failure(subject: Subject, module: nn.Module, length: int) -> SubjectFailedError | None:
    """What a forward pass raises, if it does."""
    try:
        _forward(subject, module, length)
    except SubjectFailedError as failure:
        return failure
    return None


def _forward(subject: Subject, module: nn.Module, length: int) -> None:
    """One forward pass; SubjectFailedError when it raises."""
    asked = replace(subject, build=lambda _seed: module)
    mode = "no_grad" if "no_grad" in subject.modes else subject.modes[0]
    conditions = Conditions(device=subject.device, forward_only=True, measures_memory=False)
    perform(asked, Point(length=length, dtype=subject.dtype, mode=mode), conditions)


def _declared(module: nn.Module) -> int:
    """The longest length that the module says it serves, by a usual name; 0 where it says none."""
    named = (vars(holder).get(name) for part in module.modules() for holder in _holders(part) for name in _LIMITS)
    return max((value for value in named if type(value) is int), default=0)


def _holders(part: nn.Module) -> list[Any]:
    """A module and what it was configured by."""
    found = (part, *(getattr(part, name, None) for name in ("config", "cfg", "args")))
    return [holder for holder in found if hasattr(holder, "__dict__")]


def _sizes(module: nn.Module) -> set[int]:
    """Every size a module holds: of its parameters and buffers, and whole numbers among its attributes."""
    found: set[int] = set()
    for part in module.modules():
        tensors = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        found |= {size for tensor in tensors for size in tensor.shape}
        holders: list[Any] = [part, *(getattr(part, name, None) for name in ("config", "cfg", "args"))]
        for holder in holders:
            values = holder.values() if isinstance(holder, dict) else getattr(holder, "__dict__", {}).values()
            found |= {value for value in values if type(value) is int}
            found |= {size for value in values for size in getattr(value, "shape", ()) if type(size) is int}
    return found
