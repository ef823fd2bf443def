"""Finds the module and the operation through which two runs that should agree come to differ.

In each tensor only a part has to agree: the first tokens, say, when later ones were changed. The module is the
innermost whose inputs agree and whose outputs do not; from its output what differs is followed back to the operation
whose inputs agree. Of several inputs that differ it is followed through the one that makes the result right when it is.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import Places, definition_place
from nsa_doctor.probes.hooks.recording import Call, Operation, Recording, record
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.agreeing_parts import AgreeingParts
from nsa_doctor.probes.numerics.mask_origin import averaged_through, mask_made_of, mask_with_later_keys
from nsa_doctor.probes.numerics.paired_operations import OF_LAYOUT, PairedOperations, aligned
from nsa_doctor.probes.tensors.operations import reads_masks

_MOVES = OF_LAYOUT | frozenset(
    (
        *("as_strided", "cat", "constant_pad_nd", "copy_", "movedim", "narrow", "permute", "select", "slice", "split"),
        *("split_with_sizes", "squeeze", "stack", "t", "to_copy", "transpose", "unbind", "unfold", "unsqueeze"),
    )
)  # what these are handed may be other where it need not agree, though what comes of it has to
_FETCHING = frozenset({"embedding", "gather", "index", "index_select", "take_along_dim"})
_SPREADING = frozenset({"index_add", "index_copy", "index_put", "scatter", "scatter_add", "scatter_reduce"})
_CHOOSING = frozenset({"argmax", "argsort", "sort", "topk"})
_APART = frozenset({"select", "split", "split_with_sizes", "unbind"})


@dataclass(frozen=True)
class Divergence:
    """The operation at which two runs first diverge ("" where none could be named), and its place in the subject.

    `mask` is the line of a mask that it reads and that shows queries later keys, or others that it has to hide, if one
    is seen; it `hides_all` where it hides every key of a query instead, of which a softmax then makes an average.
    """

    operation: str
    place: Place
    mask: Place | None = None
    hides_all: bool = False

    @property
    def mask_text(self) -> str:
        """What is wrong with the mask, and where; empty where none is seen."""
        if self.mask is None:
            return ""
        made, read = (f"{Path(place.file).name}:{place.line}" for place in (self.mask, self.place))
        if self.hides_all:
            return f"{made} hides every key of a token, and softmax then averages them all"
        return f"the mask made at {made} and read at {read} shows later keys"

    @property
    def computes(self) -> bool:
        """Whether an operation is named that does more than lay values out otherwise."""
        return self.operation not in _MOVES | {""}


def first_divergence(
    built: BuiltModule,
    first: Callable[[], Tensor],
    second: Callable[[], Tensor],
    kept: Mapping[int, int],
    allowed: Tensor | None = None,
) -> Divergence:
    """Run both; `kept` maps the size of a dimension to how many of its first indices have to agree, of its last if < 0.

    With no `kept` everything has to. `allowed` says which keys may be seen, where both are given a tensor that does.
    """
    return divergence_of(built, recording_of(built, first), recording_of(built, second), kept, allowed)


def recording_of(built: BuiltModule, run: Callable[[], Tensor]) -> Recording:
    """One run, to be compared with another."""
    places = Places(FrameFilter(built.subject.packages))
    places.know(built.module)
    return record(run, places)


def answer_place(built: BuiltModule, name: str, run: Callable[[], Tensor]) -> Place:
    """The line that makes what a part of that name answers when it is run by itself; else where its forward is."""
    recording, part = recording_of(built, run), part_at(built.module, name)
    made = recording.output_maker
    place = recording.operations[made].place if made >= 0 else Place()
    return replace(place if place.file else definition_place(part), module=name, module_class=type(part).__name__)


def divergence_of(
    built: BuiltModule,
    expected: Recording,
    result: Recording,
    kept: Mapping[int, int],
    allowed: Tensor | None = None,
) -> Divergence:
    """Where two runs that were recorded diverge; `kept` and `allowed` as for `first_divergence`."""
    parts = AgreeingParts(dict(kept))
    calls = _guilty_call(result, expected, parts)
    number, passed = _guilty_operation(result, expected, parts, calls)
    others = {i: expected.operations[j] for i, j in aligned(result.operations, expected.operations)}

    def mask_of(number: int) -> Place | None:
        if not kept:
            return None  # nothing is to be hidden
        if allowed is None:
            return mask_with_later_keys(result.operations, others, number, parts.kept)
        return mask_made_of(result.operations, others, number, parts.kept, allowed)

    number = _beyond_gathering(result, others, number, passed, mask_of) if isinstance(number, int) else number
    found = result.operations[number] if isinstance(number, int) else number
    call = calls[0] if calls is not None else None
    whole = definition_place(built.module)
    if call is not None and call.module is not None:
        path = next((path for path, module in built.module.named_modules() if module is call.module), "")
        whole = replace(definition_place(call.module), module=path)
    if found is None:
        return Divergence("", whole)
    is_known = bool(found.place.module)  # the run may be of another module than `built`, whose parts have no names here
    is_whole = call is None or not is_known or not whole.module
    is_inside = is_whole or f"{found.place.module}.".startswith(f"{whole.module}.")
    helped = found.caller if found.name in _FETCHING else None  # what fetches for others is handed what to fetch
    place = (helped or found.place) if is_inside and found.place.file else whole
    mask = mask_of(number) if isinstance(number, int) else None
    own = replace(place, module=whole.module, module_class=whole.module_class)
    read = None if mask is None else replace(mask, module=whole.module, module_class=whole.module_class)
    averaged = isinstance(number, int) and mask and averaged_through(result.operations, others, number, parts.kept)
    return Divergence(found.name, own, read, hides_all=mask is not None and averaged == mask)


def _beyond_gathering(
    result: Recording,
    others: Mapping[int, Operation],
    number: int,
    passed: Sequence[int],
    mask_of: Callable[[int], Place | None],
) -> int:
    """Of what fetches values that need not agree, what comes of it: they may be fetched if they are hidden.

    The nearest operation that reads them by a mask which does not hide them; else where it was chosen which to fetch.
    """
    guilty = result.operations[number]
    if guilty.name not in _MOVES | _FETCHING:
        return number
    if number in others and _indices_agree(guilty, others[number]):
        reading = (index for index in reversed(passed) if _reads_scores(result.operations[index].name))
        reader = next((index for index in reading if mask_of(index) is not None), None)
        if reader is not None:
            return reader
    waiting, known = list(guilty.makers) if guilty.name in _FETCHING else [], set[int]()
    while waiting:
        index = waiting.pop()
        operation = result.operations[index]
        if index >= 0 and operation.name in _CHOOSING and any(each.is_floating_point() for _, each in operation.read):
            return index
        if index >= 0 and index not in known and _is_of_indices(operation):
            known.add(index)
            waiting += operation.makers
    return number


def _indices_agree(one: Operation, other: Operation) -> bool:
    """Whether both fetch from the same places."""
    both = zip(one.read, other.read, strict=False)
    return all(own.is_floating_point() or torch.equal(own, expected) for (_, own), (_, expected) in both)


def _reads_scores(operation: str) -> bool:
    return reads_masks(operation) or operation == "bmm"


def _is_of_indices(operation: Operation) -> bool:
    return any(not each.is_floating_point() for each in operation.results)


def _guilty_call(result: Recording, expected: Recording, parts: AgreeingParts) -> tuple[Call, Call] | None:
    """The first call to end whose inputs agree and whose outputs do not, in both runs."""
    for call, other in zip(result.calls, expected.calls, strict=False):
        if type(call.module) is not type(other.module):
            return None
        if not parts.differ(call.inputs, other.inputs) and parts.differ(call.outputs, other.outputs):
            return call, other
    return None


def _guilty_operation(
    result: Recording, expected: Recording, parts: AgreeingParts, calls: tuple[Call, Call] | None
) -> tuple[Operation | int | None, Sequence[int]]:
    """Follow what differs back from the differing output of these calls to an operation whose inputs agree.

    From there to what is of all tokens together, as a sum over them is; from what takes them apart, to what they were
    part of. Where one run does what the other does not, that is followed back likewise. The number of the result's
    operation, or the operation itself where it is the other run's; with the numbers of those it was reached through.
    """
    own, other = calls or (Call.whole(result), Call.whole(expected))
    here, there = result.operations[own.start : own.end], expected.operations[other.start : other.end]
    pairs = [(own.start + i, other.start + j) for i, j in aligned(here, there)]
    paired = PairedOperations(result, {i: expected.operations[j] for i, j in pairs}, parts)
    differing = paired.differing()
    only_here = _of_subject(result, set(range(own.start, own.end)) - {i for i, _ in pairs})
    only_there = _of_subject(expected, set(range(other.start, other.end)) - {j for _, j in pairs})
    if not differing:
        if (index := _first_alone(result, only_here)) is not None:
            return index, ()
        index = _first_alone(expected, only_there)
        return None if index is None else expected.operations[index], ()
    first = max(differing.intersection(own.makers) or differing)
    index = _earliest(result, first, differing, only_here, paired.through)
    if result.operations[index].name.rstrip("_") in _SPREADING and (before := _reached_by(result, index) & differing):
        index = _earliest(result, max(before), differing, only_here, paired.through)  # rows of tokens that were chosen
    mixed = paired.mixed()
    while (whole := max(_taken_apart(result, index, mixed) & differing, default=None)) is not None:
        index = _earliest(result, whole, differing, only_here, paired.through)
    reduced = _earliest(result, index, paired.reduced())
    index = index if result.operations[reduced].name in _MOVES else reduced  # a share of the tokens is not all of them
    made_there = expected.operations[dict(pairs)[index]].makers if index in differing else ()
    alone = _first_alone(expected, only_there.intersection(made_there), only_there)
    return (index if alone is None else expected.operations[alone]), paired.passed


def _of_subject(run: Recording, indices: set[int]) -> set[int]:
    """Without what the input was made by."""
    return {index for index in indices if run.operations[index].place.file}


def _first_alone(run: Recording, last: set[int], alone: Set[int] = frozenset()) -> int | None:
    """Where what one run `alone` does begins, behind the last of such operations; None where it does nothing else."""
    changing = [index for index in last if run.operations[index].name not in OF_LAYOUT]
    return _earliest(run, max(changing), set(), alone or last) if changing else None


def _earliest(
    run: Recording,
    index: int,
    chosen: set[int],
    alone: Set[int] = frozenset(),
    through: Callable[[int, Collection[int]], int] = lambda _index, makers: max(makers),
) -> int:
    """The earliest that is reached from an operation through makers that are chosen or done in this run alone.

    Of the latter one that no more than lays values out otherwise is passed over.
    """
    reached, followed = index, chosen | alone
    while before := [maker for maker in run.operations[index].makers if maker in followed and maker < index] or (
        _beyond_moves(run, index, chosen)
    ):
        index = through(index, before)
        if index in chosen or run.operations[index].name not in OF_LAYOUT:
            reached = index
    return reached


def _reached_by(run: Recording, index: int) -> set[int]:
    """All that an operation goes back to."""
    waiting, seen = list(run.operations[index].makers), set[int]()
    while waiting:
        here = waiting.pop()
        if here >= 0 and here not in seen:
            seen.add(here)
            waiting += run.operations[here].makers
    return seen


def _taken_apart(run: Recording, index: int, mixed: Set[int]) -> set[int]:
    """What tokens were part of before they were taken apart, that an operation is reached by through what is mixed."""
    waiting, seen, found = [index], set[int](), set[int]()
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        found |= set(run.operations[here].makers) if run.operations[here].name in _APART else set()
        waiting += [maker for maker in run.operations[here].makers if maker in mixed and maker < here]
    return {maker for maker in found if maker < index}


def _beyond_moves(run: Recording, index: int, chosen: Set[int]) -> list[int]:
    """Those chosen from which an operation that computes nothing has its values, through others like it."""
    waiting, found, seen = [index], list[int](), set[int]()
    while waiting:
        here = waiting.pop()
        if here in seen or run.operations[here].name not in _MOVES:
            continue
        seen.add(here)
        makers = [maker for maker in run.operations[here].makers if 0 <= maker < here]
        found += [maker for maker in makers if maker in chosen]
        waiting += [maker for maker in makers if maker not in chosen]
    return found
