"""The line that builds a mask which shows a query later keys, upstream of the operation at which two runs diverge."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.recording import Operation
from nsa_doctor.probes.tensors.operations import reads_masks

_MOST_BETWEEN = 24  # operations on scores between what hides some of them and what reads them, views among them
_PRODUCTS = ("bmm", "mm", "matmul")  # of probabilities and values
_MOST_ELEMENTS = 1 << 22
_OF_SOFTMAX = ("amax", "div", "max", "sub", "sum")  # of one that is written out
_HIDING = ("masked_fill", "where")
_LARGEST = 1e30  # beyond it a score hides and is not one
_JOINING = ("bitwise_and", "bitwise_or", "logical_and", "logical_or")
_COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
_ADJUSTING = (
    "clamp",
    "clamp_max",
    "clamp_min",
    "expand",
    "maximum",
    "minimum",
    "slice",
    "to_copy",
    "unsqueeze",
    "view",
)


def mask_with_later_keys(
    operations: Sequence[Operation], others: Mapping[int, Operation], index: int, kept: Mapping[int, int]
) -> Place | None:
    """The first operation of a mask, read by operation `index` of a run, that lets queries see later keys.

    `others` are those of another run, by the number of the one that does the same; `kept` says of dimensions of
    queries, by their size, how many of the first have to agree, or of the last if it is negative. A mask is what both
    runs have alike, whatever their inputs are. Of one of as many keys as queries its last queries are its last keys; of
    another, as of blocks, those keys are later whose scores differ.
    """
    name = operations[index].name
    if not reads_masks(name) and name not in (*_PRODUCTS, *_OF_SOFTMAX):
        return None
    scores = _differing_scores(operations, others, index, kept)
    if scores is None and name in _OF_SOFTMAX:
        return None
    found = sorted(_constants(operations, others, index, kept))
    constant = [number for number in found if operations[number].place.file]
    if (averaging := averaged_through(operations, others, index, kept)) is not None:
        return averaging
    if (joined := _joined_wrongly(operations, constant, _leaked(operations, others, index, kept))) is not None:
        return operations[joined].place
    for number in constant:
        if any(_shows_later(seen) for each in operations[number].results for seen in _visible(each)):
            return operations[number].place
    if scores is None:
        return None
    fineness = {
        number: max((_fineness(each, scores) for each in operations[number].results), default=0) for number in constant
    }
    if not any(fineness.values()):
        undone = _undone(operations, constant, scores)
        return None if undone is None else operations[undone].place
    finest = max(constant, key=lambda number: fineness[number])  # of masks that are joined, that of single keys
    part = _joined_part(operations, finest, scores)
    return _limit(operations, part) or operations[part].place


def averaged_through(
    operations: Sequence[Operation], others: Mapping[int, Operation], index: int, kept: Mapping[int, int]
) -> Place | None:
    """Where all keys of a query are hidden, if its probabilities, which operation `index` reads, are alike for that."""
    if operations[index].name not in _PRODUCTS:
        return None
    scores = _differing_scores(operations, others, index, kept)
    averaging = None if scores is not None and bool(scores.any()) else _averaging(operations, index, kept)
    return None if averaging is None else operations[averaging].place


def mask_made_of(
    operations: Sequence[Operation], others: Mapping[int, Operation], index: int, kept: Mapping[int, int], given: Tensor
) -> Place | None:
    """The first operation of a mask, read by operation `index` of a run, that is made of a tensor and shows too much.

    The tensor tells which keys are to be seen, as offsets of documents do: the two runs differ in keys that are not.
    """
    scores = _differing_scores(operations, others, index, kept)
    start = next((number for number, each in enumerate(operations) if _is(each, given)), None)
    if scores is None or start is None or not bool(scores.any()):
        return None
    made, showing = {start}, list[int]()
    for number in sorted(_constants(operations, others, index, {})):
        if made.intersection(operations[number].makers):
            made.add(number)
            is_shown = any(_is_shown(each, scores) for each in operations[number].results)
            showing += [number] if is_shown and operations[number].place.file else []
    compared = [number for number in showing if operations[number].name in _COMPARISONS]  # others join several masks
    guilty = next(iter((*compared, *showing)), None)
    return None if guilty is None else _limit(operations, guilty) or operations[guilty].place


def first_reader(operations: Sequence[Operation], given: Tensor) -> Place | None:
    """Where the subject first reads a tensor that it was given."""
    start = next((number for number, each in enumerate(operations) if _is(each, given)), None)
    readers = (each.place for each in operations if start in each.makers and each.place.file)
    return next(readers, None)


def _scores_before(operations: Sequence[Operation], index: int) -> tuple[int, bool]:
    """What the probabilities that an operation reads are made of: the softmax, or else what hides scores of one.

    And whether it is read by that operation; itself where there is none.
    """
    waiting, seen, hiding = [index], set[int](), list[int]()
    while waiting and len(seen) < _MOST_BETWEEN:
        number = max(waiting)
        waiting.remove(number)
        seen.add(number)
        if "softmax" in operations[number].name:
            return number, True
        if operations[number].name.startswith(_HIDING):
            hiding.append(number)
        waiting += [each for each in operations[number].makers if each >= 0 and each not in seen]
    return (hiding[0], False) if hiding else (index, True)


def _is(operation: Operation, tensor: Tensor) -> bool:
    return any(each.dtype == tensor.dtype and torch.equal(each, tensor.to(each.device)) for each in operation.results)


def _differing_scores(
    operations: Sequence[Operation], others: Mapping[int, Operation], index: int, kept: Mapping[int, int]
) -> Tensor | None:
    """[Q, K]: which scores that a softmax reads, and does not hide, differ of queries that have to agree."""
    leaked = _leaked(operations, others, index, kept)
    if leaked is None:
        return None
    dim = _dim_of_queries(leaked, kept)
    return leaked.movedim(dim, -2).reshape(-1, leaked.shape[dim], leaked.shape[-1]).any(0)


def _leaked(
    operations: Sequence[Operation], others: Mapping[int, Operation], index: int, kept: Mapping[int, int]
) -> Tensor | None:
    """The same in the shape of the scores."""
    number, is_read = _scores_before(operations, index)
    operation, other = operations[number], others.get(number)
    if other is None or (is_read and "softmax" not in operation.name):
        return None
    pairs = [(tensor for _, tensor in each.read) if is_read else iter(each.results) for each in (operation, other)]
    own, expected = (next(tensors, None) for tensors in pairs)
    if own is None or expected is None or own.shape != expected.shape or own.ndim < 2 or not own.is_floating_point():
        return None
    differs = (own != expected) & (own.abs() < _LARGEST) & (expected.abs() < _LARGEST)
    dim = _dim_of_queries(own, kept)
    size, count = own.shape[dim], kept.get(own.shape[dim], own.shape[dim])
    agreeing = slice(count, None) if count >= 0 else slice(size + count)  # what need not agree
    differs.movedim(dim, 0)[agreeing] = False
    return differs


def _dim_of_queries(scores: Tensor, kept: Mapping[int, int]) -> int:
    return next((dim for dim in range(scores.ndim - 2, -1, -1) if scores.shape[dim] in kept), scores.ndim - 2)


def _averaging(operations: Sequence[Operation], index: int, kept: Mapping[int, int]) -> int | None:
    """The operation, upstream of a product, that hides all keys of a query by a value that a softmax takes for a score.

    All of them then weigh alike. Of queries that have to agree; None where none does.
    """
    waiting, seen = [index], set[int]()
    while waiting and len(seen) < _MOST_BETWEEN:
        number = max(waiting)
        waiting.remove(number)
        seen.add(number)
        here = operations[number]
        if here.name.startswith(_HIDING) and here.place.file and _hides_all(here, kept):
            return number
        waiting += [each for each in here.makers if each >= 0 and each not in seen]
    return None


def _hides_all(hiding: Operation, kept: Mapping[int, int]) -> bool:
    """Whether a query that has to agree has all its keys hidden, by a finite value."""
    mask = next((tensor for _, tensor in hiding.read if tensor.dtype == torch.bool), None)
    result = next(iter(hiding.results), None)
    if mask is None or result is None or result.ndim < 2 or not _goes_with(mask, result):
        return False
    hidden = (mask if hiding.name.startswith("masked_fill") else ~mask).expand_as(result)
    dim = _dim_of_queries(result, kept)
    count = kept.get(result.shape[dim], result.shape[dim])
    agreeing = slice(count) if count >= 0 else slice(count, None)
    return bool((hidden & torch.isfinite(result)).movedim(dim, 0)[agreeing].all(-1).any())


def _joined_wrongly(operations: Sequence[Operation], constant: Sequence[int], leaked: Tensor | None) -> int | None:
    """The first operation that joins two masks and shows scores that one of them hides; None where none does.

    Masks of whatever layout that goes with that of the scores. Of queries the first one is asked: where they are laid
    out in blocks, later ones may see what differs.
    """
    if leaked is None or not bool(leaked.any()):
        return None
    rows = torch.zeros_like(leaked).flatten(0, -2)
    first = int(leaked.flatten(0, -2).any(-1).nonzero()[0, 0])
    rows[first] = leaked.flatten(0, -2)[first]
    leaked = rows.view_as(leaked)
    for number in constant:
        if not operations[number].name.startswith(_JOINING) or len(operations[number].read) < 2:
            continue
        masks = [*operations[number].results[:1], *(tensor for _, tensor in operations[number].read)]
        if any(mask.dtype != torch.bool or not _goes_with(mask, leaked) for mask in masks):
            continue
        joined, *parts = (mask.expand(leaked.shape)[leaked] for mask in masks)
        is_one = bool((joined == joined[0]).all())
        if is_one and any(bool((part != joined).all()) for part in parts):
            return number
    return None


def _goes_with(mask: Tensor, scores: Tensor) -> bool:
    shape = scores.shape[scores.ndim - mask.ndim :] if mask.ndim <= scores.ndim else ()
    return len(shape) > 1 and all(own in (1, size) for own, size in zip(mask.shape, shape, strict=True))


def _slices_and_worst(mask: Tensor, scores: Tensor, which: int) -> tuple[Tensor, int, int] | None:
    """A mask [N, Q, K] of these scores, and a query and a key, the first such or the last; None where it is none.

    Scores may have more columns, as of sinks, behind those of keys.
    """
    if mask.dtype != torch.bool or mask.ndim < 2 or mask.numel() > _MOST_ELEMENTS or not mask.numel():
        return None
    num_keys, found = mask.shape[-1], scores[:, : mask.shape[-1]]
    dim = next((dim for dim in range(mask.ndim - 2, -1, -1) if mask.shape[dim] == scores.shape[0]), None)
    if dim is None or found.shape[1] != num_keys or not bool(found.any()):
        return None
    query, key = found.nonzero()[which].tolist()
    return mask.movedim(dim, -2).reshape(-1, scores.shape[0], num_keys), query, key


def _fineness(mask: Tensor, scores: Tensor) -> int:
    """How many last keys queries have by a mask that shows one what it may not see; 0 where it is none.

    Such a mask hides what comes last from the first query, and shows the first of these scores, which none may see. Of
    queries that see some of them the first one is asked, for later ones may be where the inputs differ.
    """
    if (found := _slices_and_worst(mask, scores, 0)) is None:
        return 0
    slices, query, key = found
    shown = slices[:, query, key]
    if not bool((slices[:, 0, -1] != shown).any()):
        return 0
    visible = slices == shown[:, None, None]
    last = torch.where(visible, torch.arange(1, slices.shape[2] + 1), 0).amax(2)
    return max(len(each.unique()) for each in last)


def _is_shown(mask: Tensor, scores: Tensor) -> bool:
    """Whether a mask that hides something has the same for one of these as for what a query is to itself."""
    found = _slices_and_worst(mask, scores, -1)
    if found is None or found[0].shape[1] != found[0].shape[2]:
        return False
    slices, query, key = found
    is_shown = bool((slices[:, query, key] == slices[:, query, query]).all())
    return is_shown and not bool((slices == slices[0, 0, 0]).all())


def _undone(operations: Sequence[Operation], constant: Sequence[int], scores: Tensor) -> int | None:
    """The first operation that shows one of these scores, which one that it reads hides; None where none does."""
    shown = {number: _shows(operations[number], scores) for number in constant}
    for number in constant:
        if shown[number] and any(shown.get(maker) is False for maker in operations[number].makers):
            return number
    return None


def _shows(operation: Operation, scores: Tensor) -> bool | None:
    """Whether a mask of as many keys as queries has the same for one of these as for what that query is to itself."""
    for each in operation.results:
        found = _slices_and_worst(each, scores, 0)
        if found is not None and found[0].shape[1] == found[0].shape[2]:
            slices, query, key = found
            return bool((slices[:, query, key] == slices[:, query, query]).all())
    return None


def _joined_part(operations: Sequence[Operation], number: int, scores: Tensor) -> int:
    """Of a mask that is joined of several, the one that shows the key; the mask itself where it is not."""
    key = int(scores.nonzero()[0, 1])
    while operations[number].name in (*_ADJUSTING, "cat"):
        for maker, tensor in operations[number].read:
            if key < tensor.shape[-1] or operations[number].name != "cat":
                number = maker
                break
            key -= tensor.shape[-1]
        else:
            return number
    return number


def _limit(operations: Sequence[Operation], number: int) -> Place | None:
    """Where another function computes the numbers that an operation compares with; None where none does."""
    here = operations[number]
    if here.name not in _COMPARISONS:
        return None
    for maker in _through_adjusting(operations, here.makers):
        place = operations[maker].place
        if place.file and place.function != here.place.function and not _counts(operations[maker]):
            return place
    return None


def _counts(operation: Operation) -> bool:
    """Whether its result is one number after the other, as positions are."""
    return all(bool((each.flatten().diff() == 1).all()) for each in operation.results[:1])


def _through_adjusting(operations: Sequence[Operation], makers: Sequence[int]) -> Iterator[int]:
    for maker in makers:
        while maker >= 0 and operations[maker].name in _ADJUSTING and operations[maker].makers:
            maker = max(operations[maker].makers)
        if maker >= 0:
            yield maker


def _constants(
    operations: Sequence[Operation], others: Mapping[int, Operation], index: int, kept: Mapping[int, int]
) -> set[int]:
    """The operations upstream that give the same in both runs, where it is kept, by way of a few that do not."""
    found, waiting = set[int](), [(index, 0)]
    seen = {index}
    while waiting:
        number, depth = waiting.pop()
        for maker in operations[number].makers:
            if maker < 0 or maker in seen:
                continue
            seen.add(maker)
            if _is_alike(operations[maker], others.get(maker), kept):
                found.add(maker)
                waiting.append((maker, depth))
            elif depth < _MOST_BETWEEN and number not in found:
                waiting.append((maker, depth + 1))
    return found


def _is_alike(operation: Operation, other: Operation | None, kept: Mapping[int, int]) -> bool:
    """Whether two results are the same; of masks, what queries have that have to agree."""
    pairs = [] if other is None else list(zip(operation.results, other.results, strict=False))
    return bool(pairs) and all(
        one.shape == two.shape and (torch.equal(one, two) or (one.dtype == torch.bool and _agree(one, two, kept)))
        for one, two in pairs
    )


def _agree(one: Tensor, other: Tensor, kept: Mapping[int, int]) -> bool:
    dim = next((dim for dim in range(one.ndim - 2, -1, -1) if one.shape[dim] in kept), None)
    if dim is None:
        return False
    size, count = one.shape[dim], kept[one.shape[dim]]
    start, length = (0, count) if count >= 0 else (size + count, -count)
    return torch.equal(one.narrow(dim, start, length), other.narrow(dim, start, length))


def _visible(mask: Tensor) -> list[Tensor]:
    """[Q, K]: which key each query sees by each of the last slices of a mask; none where it is no mask."""
    if mask.dtype != torch.bool or mask.ndim < 2 or min(mask.shape[-2:]) < 2 or mask.numel() > _MOST_ELEMENTS:
        return []
    slices = mask.reshape(-1, *mask.shape[-2:])
    hides = bool(slices[-1, 0, -1]) and not bool(slices[-1, -1, 0])
    return [~each if hides else each for each in (slices[0], slices[-1])]


def _shows_later(visible: Tensor) -> bool:
    """Whether queries see more the later they are, and some one that is later than they are."""
    num_before = visible.shape[1] - visible.shape[0]
    return num_before >= 0 and _grows(visible) and bool(visible.triu(num_before + 1).any())


def _grows(visible: Tensor) -> bool:
    """Whether the last key that a query sees comes later for later queries, and not all see the last."""
    numbers = torch.arange(1, visible.shape[1] + 1)
    last = torch.where(visible, numbers, 0).amax(1)
    return bool((last[1:] >= last[:-1]).all()) and int(last[0]) < int(last[-1])
