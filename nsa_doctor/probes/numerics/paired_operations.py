"""The operations that two runs have alike: which of them differ, and through which of its inputs one does.

A tensor none of whose sizes says what part of it has to agree, as one of flattened rows, is judged as what it was laid
out from, or is laid out as.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property

from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.recording import Operation, Recording
from nsa_doctor.probes.numerics.agreeing_parts import AgreeingParts

_MOST_MATCHED = 1000  # operations that the front and the end do not pair
OF_LAYOUT = frozenset({"alias", "clone", "contiguous", "detach", "expand", "reshape", "unsafe_view", "view"})
_KEEPING_ALL = OF_LAYOUT | {"movedim", "permute", "squeeze", "t", "transpose", "unflatten", "unsqueeze"}
_CUTTING = frozenset({"chunk", "narrow", "select", "slice", "split", "split_with_sizes", "unbind"})


@dataclass
class PairedOperations:
    """Operations of a run by their number, each with the one that does the same in the other run.

    `passed` are those that were followed back, in that order.
    """

    run: Recording
    others: Mapping[int, Operation]
    parts: AgreeingParts
    passed: list[int] = field(default_factory=list)
    _verdicts: dict[int, bool] = field(default_factory=dict)

    def differing(self) -> set[int]:
        """Those whose results differ where they have to agree."""
        for index in self._written:
            self._verdicts[index] = self._differs(index)
        return {index for index, differs in self._verdicts.items() if differs}

    def mixed(self) -> set[int]:
        """Those that have results of all tokens together, as a sum over them, and differ."""
        both = ((index, self.run.operations[index].results, self.others[index].results) for index in self._written)
        return {index for index, results, expected in both if self.parts.is_mixed(results, expected)}

    def reduced(self) -> set[int]:
        """Those of the mixed that are of tokens of which some have to agree, and not of later ones, cut out of all."""
        found = set[int]()
        for index in sorted(self.mixed()):
            operation = self.run.operations[index]
            is_cut = operation.name in _CUTTING
            if found.intersection(operation.makers) or (not is_cut and any(map(self._is_known, operation.makers))):
                found.add(index)
        return found

    def _is_known(self, index: int) -> bool:
        """Whether it is known of the results of an operation which part has to agree, as they are or laid out."""
        if index not in self.others:
            return False
        source = self._source(index)
        return (
            self.parts.knows(self.run.operations[index].results)
            or (source is not None and self._is_known(source))
            or self._known_layout(index) is not None
        )

    def through(self, index: int, makers: Collection[int]) -> int:
        """Of these makers of an operation the one whose results, as the other run has them, make its own right.

        The last where none does so alone, or where that is not known.
        """
        operation, other = self.run.operations[index], self.others.get(index)
        self.passed.append(index)
        if other is None or len(makers) == 1 or len(operation.read) != len(other.read) or not operation.read:
            return max(makers)
        for maker in sorted(makers, reverse=True):
            pairs = zip(operation.read, other.read, strict=True)
            read = [right if made_by == maker else own for (made_by, own), (_, right) in pairs]
            results = attempt(lambda read=read: operation.again(read))
            if not isinstance(results, Caught) and not self._is_wrong(index, results):
                return maker
        return max(makers)

    @property
    def _written(self) -> Iterator[int]:
        pairs = ((index, self.run.operations[index], other) for index, other in self.others.items())
        yield from (index for index, own, other in pairs if own.is_written and other.is_written)

    @cached_property
    def _laid_out(self) -> dict[int, int]:
        """By the number of an operation, the first that lays its result out otherwise, and all of it."""
        found: dict[int, int] = {}
        for index in self._written:
            if (maker := self._source(index)) is not None:
                found.setdefault(maker, index)
        return found

    def _source(self, index: int) -> int | None:
        """What an operation lays out otherwise, if that is all it does."""
        operation = self.run.operations[index]
        if operation.name not in _KEEPING_ALL or len(operation.makers) != 1 or operation.makers[0] not in self.others:
            return None
        sizes = [each.numel() for each in (*self.run.operations[operation.makers[0]].results, *operation.results)]
        return operation.makers[0] if len(sizes) == 2 and sizes[0] == sizes[1] else None

    def _differs(self, index: int) -> bool:
        results = self.run.operations[index].results
        if not self.parts.knows(results):
            source = self._source(index)
            if source in self._verdicts:
                return self._verdicts[source]
            if (laid_out := self._known_layout(index)) is not None:
                index = laid_out
        return self.parts.differ(self.run.operations[index].results, self.others[index].results)

    def _known_layout(self, index: int) -> int | None:
        """The first operation that lays these results out so that it is known what has to agree."""
        following = self._laid_out.get(index)
        while following is not None and not self.parts.knows(self.run.operations[following].results):
            following = self._laid_out.get(following)
        return following

    def _is_wrong(self, index: int, results: Sequence[Tensor]) -> bool:
        """Whether an operation would differ with these results."""
        while not self.parts.knows(results) and index in self._laid_out:
            index = self._laid_out[index]
            results = self.run.operations[index].again(results)
        return self.parts.differ(results, self.others[index].results)


def aligned(result: Sequence[Operation], expected: Sequence[Operation]) -> Iterator[tuple[int, int]]:
    """Pairs of the same operation: from the front as long as names agree, from the end, and by place between these."""
    names, others = [operation.name for operation in result], [operation.name for operation in expected]
    shorter = min(len(names), len(others))
    front = next((index for index in range(shorter) if names[index] != others[index]), shorter)
    back = next((index for index in range(shorter - front) if names[-1 - index] != others[-1 - index]), shorter - front)
    yield from ((index, index) for index in range(front))
    middle, other_middle = result[front : len(names) - back], expected[front : len(others) - back]
    if max(len(middle), len(other_middle)) <= _MOST_MATCHED:
        keys, other_keys = ([(each.name, each.place) for each in of] for of in (middle, other_middle))
        for i, j, size in SequenceMatcher(None, keys, other_keys, autojunk=False).get_matching_blocks():
            yield from ((front + i + index, front + j + index) for index in range(size))
    yield from ((len(names) - index, len(others) - index) for index in range(back, 0, -1))
