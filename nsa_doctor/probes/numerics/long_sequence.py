"""One long sequence beside a shorter one: whether its end is read, in its order, by nothing before it, and no more."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.check import Profile
from nsa_doctor.core.errors import NotApplicableError, NotComparableError, SubjectFailedError
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.internal import DispatchWatcher
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.nominal_time import nominal_seconds
from nsa_doctor.probes.numerics.compare import Baseline, Departure, baseline
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in
from nsa_doctor.subject.contract import Subject

# A little past where indices of eight bits for blocks of 8 and 16 tokens end, and numbers of float16. The last token
# stands at one place in blocks of up to 64, whatever the length, and at the edge of none of more than four.
_PAST = 45
_LENGTHS = (8192 + _PAST, 4096 + _PAST, 2048 + _PAST)
_BLOCK = 64
_RECENT = 40
_MOST_ROWS = 2
_NUM_CALLS = 2
_COUNTED = 1024
_NOMINAL_SECONDS: dict[Profile, float] = {"smoke": 0.5, "quick": 2.6, "full": 20.0}
_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather", "take"})
_SHORTEST, _NEAR_SHARE = 557, 0.4  # of the shorter sequence: what sees no farther has a window
_SINKS = 64  # the first tokens, which a window may see besides
_LEAST = 1e-6  # of the output: what a token changes at the shorter length, for it to be missed at the longer,
_ROUNDINGS = 1e3  # where it changes no more than so many: an influence that thins out with the length is still there


@dataclass(frozen=True)
class Fault:
    """What is wrong with the long sequence, in words, and how; `kept` are the tokens that should not have changed."""

    words: str
    departure: Departure | None = None
    kept: int = 0
    other: Tensor | None = None
    place: Place | None = None


def longest_affordable(sp: BuiltModule, calls: int = _NUM_CALLS) -> tuple[int, int] | None:
    """The longest length served that there is time for so many calls at, and for how many rows; None where none is."""
    limit, allowed = sp.subject.max_length, _NOMINAL_SECONDS[sp.subject.profile] / calls
    longer = min(_COUNTED, limit)
    shorter = longer // 2
    served = _served(sp.subject)
    if not served:
        return None
    first = _nominal_seconds(sp, shorter)
    if first * served[-1] / shorter > allowed:  # though it grew no faster than the length
        return None
    second = _nominal_seconds(sp, longer)
    power = max(1.0, math.log(second / first) / math.log(longer / shorter))
    known = [(longer, second), *sp.subject.call_seconds[-1:]]  # counted, and as long as it took on this machine
    needed = {n: max(took * (n / length) ** power for length, took in known) for n in served}
    rows = {n: min(_MOST_ROWS, int(allowed / each)) for n, each in needed.items()}
    return next(((n, num_rows) for n, num_rows in rows.items() if num_rows), None)


def why_none_affordable(subject: Subject) -> str:
    """Why there is no such length, in words as a report has them."""
    served = _served(subject)
    if not served:
        return f"it serves no more than S={subject.max_length}"
    return f"left out: there is no time for sequences of {served[-1]} tokens and more; --profile full may have it"


def _served(subject: Subject) -> list[int]:
    """Those of the lengths that it serves beyond all that other checks look at, the longest first."""
    limit = subject.max_length
    return [length for length in _LENGTHS if limit < length <= subject.longest and limit > _PAST]


def _nominal_seconds(sp: BuiltModule, length: int) -> float:
    with torch.no_grad():
        return nominal_seconds(lambda: sp(sp.input(length)))


def reference_length(limit: int) -> int:
    """A length up to the limit whose last token stands in a block where that of the long ones does."""
    return _PAST + (limit - _PAST) // _BLOCK * _BLOCK


def faults(sp: BuiltModule, length: int, rows: int) -> Iterator[Fault]:
    """What is wrong at that length, of so many rows; raises NotApplicableError where it is not served.

    Values that are not finite are for the NAN checks.
    """
    x, shorter = sp.input(length, rows), reference_length(sp.subject.max_length)
    head, expected = _looked_up(sp, x[-1:, :shorter])
    try:
        whole, looked_up = _looked_up(sp, x)
    except SubjectFailedError as failure:
        raise NotApplicableError(f"it does not serve S={length}: {failure}") from failure
    except NotComparableError:
        sp(x)  # once more, untraced, for what observes calls
        raise
    of_recent = list(_of_recent(whole, head))
    yield from (fault for fault in of_recent if fault.departure is not None)  # two runs of one length part at a line
    if (found := whole.departure(head.output, slice(-1, None), slice(shorter))) is not None:
        beside = " beside another row" if rows > 1 else ""
        words = f"the first {shorter} tokens alone give another output than at the head of {length}{beside}"
        yield Fault(words, found, shorter, x[-1:, :shorter])
    yield from _of_repeated(looked_up, expected, length, shorter)
    yield from (fault for fault in of_recent if fault.departure is None)
    yield from _of_distant(whole, head)


def _of_repeated(
    looked_up: list[tuple[Place, int]], expected: list[tuple[Place, int]], length: int, shorter: int
) -> Iterator[Fault]:
    """Positions that are one and the same in a table, where those of the shorter sequence are all different."""
    for (place, number), (other, all_different) in zip(looked_up, expected, strict=False):
        if place == other and number < length and all_different == shorter:
            words = f"{length} positions are looked up as {number} different ones, and {shorter} as {shorter}"
            yield Fault(words, place=place)


def _of_recent(whole: Baseline, head: Baseline) -> Iterator[Fault]:
    """What the tokens just before the last do to those before them, and do not do to the last."""
    sp, length, shorter = whole.built, whole.x.shape[1], head.x.shape[1]
    cut, changed = length - 1 - _RECENT, _reversed(whole.x)
    with torch.no_grad():
        output = sp.call(given := changed.clone())
        if not torch.equal(given, changed):
            yield Fault("the call overwrites its input")
        if (found := whole.departure(output[:, :cut], tokens=slice(cut))) is not None:
            yield Fault(f"tokens {cut} to {length - 2} change the output before them", found, cut, changed)
        if _change_at_the_end(whole, output) > 0:
            return
        ways = {"the order": _reversed, "the values": lambda x: _with_other_recent(sp, x)}
        for what, other in ways.items():
            is_seen = _change_at_the_end(head, sp(other(head.x))) > _LEAST
            if is_seen and not _change_at_the_end(whole, sp(other(whole.x))):
                words = f"the output of the last token does not depend on {what} of the {_RECENT} tokens before it"
                yield Fault(f"{words}, as it does at S={shorter}")


def _of_distant(whole: Baseline, head: Baseline) -> Iterator[Fault]:
    """What tokens far away do to the last one of the long sequence, where in a shorter one none far away does."""
    sp, farthest = whole.built, whole.x.shape[1] - 1 - 2 * _SINKS
    for length in sorted({min(_SHORTEST, head.x.shape[1]), head.x.shape[1]}):
        if length < 4 * _SINKS or length > farthest:  # no token is that far away
            continue
        base, near = baseline(sp, head.x[:, :length]), int(_NEAR_SHARE * length)
        if _change_at_the_end(base, sp(_with_other_distant(sp, base.x, near))) > 0:
            continue
        if _change_at_the_end(whole, sp(_with_other_distant(sp, whole.x, length))) > _LEAST:
            yield Fault(
                f"the output of the last token depends on tokens more than {length} before it, "
                f"and at S={length} on none more than {near} before it"
            )
            return


def _with_other_distant(sp: BuiltModule, x: Tensor, near: int) -> Tensor:
    """The input with other tokens behind the first few, up to so many before the last."""
    end = x.shape[1] - 1 - near
    other = sp.input(x.shape[1], len(x), seed=sp.subject.seed + 1)
    return torch.cat((x[:, :_SINKS], other[:, _SINKS:end], x[:, end:]), dim=1)


def _looked_up(sp: BuiltModule, x: Tensor) -> tuple[Baseline, list[tuple[Place, int]]]:
    """The output, and every look into a table by one index for each token: the place, and how many are different."""
    places = Places(FrameFilter(sp.subject.packages))
    places.know(sp.module)
    watch = _Lookups(places, x)
    with watch, places.watching():
        return baseline(sp, x), watch.found


class _Lookups(DispatchWatcher):
    def __init__(self, places: Places, x: Tensor) -> None:
        super().__init__()
        self.found: list[tuple[Place, int]] = []
        self._places, self._length = places, x.shape[1]

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; note the indices where it looks them up."""
        if operation_name(func) in _LOOKUPS:
            for index in tensors_in(args[1:], kwargs):
                is_of_tokens = index.ndim > 0 and index.shape[-1] == self._length and index.dtype != torch.bool
                if is_of_tokens and not index.is_floating_point():
                    self.found.append((self._places.here()[0], len(index.flatten()[-self._length :].unique())))
        return func(*args, **kwargs)


def _with_other_recent(sp: BuiltModule, x: Tensor) -> Tensor:
    """The input with other tokens before the last."""
    other = sp.input(_RECENT, len(x), seed=sp.subject.seed + 1)
    return torch.cat((x[:, : -1 - _RECENT], other, x[:, -1:]), dim=1)


def _reversed(x: Tensor) -> Tensor:
    """The input with the tokens before the last in the opposite order."""
    return torch.cat((x[:, : -1 - _RECENT], x[:, -1 - _RECENT : -1].flip(1), x[:, -1:]), dim=1)


def _change_at_the_end(base: Baseline, output: Tensor) -> float:
    """How far the last token's output is another, of its size; 0 for what roundings explain."""
    expected = base.output[:, -1].double()
    change = float((output[:, -1].double() - expected).abs().max()) / float(expected.abs().max())
    return 0.0 if change <= _ROUNDINGS * torch.finfo(base.output.dtype).eps else change
