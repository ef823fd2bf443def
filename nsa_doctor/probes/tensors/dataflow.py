"""Who wrote what: the operation behind each element of memory, and how long the chain of arithmetic behind it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsa_doctor.probes.internal import StorageWeakRef, memory_of

_ACCUMULATING = frozenset({"add", "sub", "addcmul", "addmm", "baddbmm", "index_add", "scatter_add", "scatter_reduce"})
_MOVING = frozenset(
    (
        *("copy", "clone", "to_copy", "cat", "stack", "index", "index_select", "gather", "take", "index_put"),
        *("index_put_impl", "scatter", "select_scatter", "slice_scatter", "fill", "zero", "constant_pad_nd"),
        *("roll", "flip", "repeat", "where", "masked_fill", "embedding", "lift_fresh", "native_dropout"),
    )
)
_LARGEST_MAP = 1 << 24  # elements; a larger storage counts as written as a whole


@dataclass(frozen=True)
class Node:
    """One operation that computed or moved values: on which line, and the operations whose results it read.

    `sources` are operations that it read whole results of; `others` wrote parts of what it read.
    """

    line: int
    name: str
    is_arithmetic: bool
    sources: tuple[int, ...]
    others: tuple[int, ...]


@dataclass
class _Memory:
    """Who wrote a storage: one operation all of it, or each element its own.

    While `kept` is there no other storage comes to have this one's address, though its values may be gone.
    """

    writer: int
    kept: StorageWeakRef
    elements: Tensor | None = None


@dataclass
class Dataflow:
    """Grows by one node per operation; -1 stands for what was there before."""

    nodes: list[Node] = field(default_factory=list)
    _memory: dict[int, _Memory] = field(default_factory=dict)

    def add(
        self, line: int, name: str, inputs: Sequence[Tensor], fresh: Sequence[Tensor], written: Sequence[Tensor]
    ) -> None:
        """Account for one operation: what it read, what new memory it filled and which it wrote into."""
        writers = [self._writers(tensor) for tensor in inputs]
        sources = {next(iter(found)) for found in writers if len(found) == 1}
        others = {writer for found in writers if len(found) > 1 for writer in found}
        results = [*fresh, *written]
        is_arithmetic = name not in _MOVING and any(tensor.is_floating_point() for tensor in results)
        number = len(self.nodes)
        self.nodes.append(Node(line, name, is_arithmetic, tuple(sources - {-1}), tuple(others - sources - {-1})))
        for tensor in fresh:
            self._memory[memory_of(tensor)] = _Memory(number, StorageWeakRef(tensor.untyped_storage()))
        for tensor in written:
            self._write(tensor, number)

    def longest_chain(self, line: int) -> int:
        """How many arithmetic operations of one line need each other's results, one after the other.

        A sum taken step by step is no chain, when nothing but the next step reads what stands in between.
        """
        readers = self._readers()
        chains: list[int] = []
        for node in self.nodes:
            chain = max((chains[source] for source in (*node.sources, *node.others)), default=0)
            if node.line == line and node.is_arithmetic and not self._is_sum(node, readers):
                chain += 1
            chains.append(chain)
        return max(chains, default=0)

    def _readers(self) -> list[int]:
        readers = [0] * len(self.nodes)
        for node in self.nodes:
            for source in (*node.sources, *node.others):
                readers[source] += 1
        return readers

    def _is_sum(self, node: Node, readers: Sequence[int]) -> bool:
        if node.name not in _ACCUMULATING:
            return False
        earlier = ((source, self.nodes[source]) for source in node.sources)
        return any((n.line, n.name) == (node.line, node.name) and readers[source] == 1 for source, n in earlier)

    def _writers(self, tensor: Tensor) -> set[int]:
        memory = self._memory.get(memory_of(tensor))
        if memory is None:
            return {-1}
        if memory.elements is None:
            return {memory.writer}
        if not tensor.numel():
            return {-1}
        return set(_corners(_same_view(memory.elements, tensor)).unique().tolist())

    def _write(self, tensor: Tensor, number: int) -> None:
        total = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
        memory = self._memory.setdefault(memory_of(tensor), _Memory(-1, StorageWeakRef(tensor.untyped_storage())))
        if tensor.numel() >= total or total > _LARGEST_MAP:
            memory.writer, memory.elements = number, None
            return
        if memory.elements is None or memory.elements.numel() != total:
            memory.elements = torch.full((total,), memory.writer, dtype=torch.int32, device="cpu")
        _same_view(memory.elements, tensor).fill_(number)


def _same_view(elements: Tensor, tensor: Tensor) -> Tensor:
    return elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _corners(elements: Tensor) -> Tensor:
    """First and last of each run of neighbours: a token's features are written together."""
    if elements.ndim and elements.shape[-1] > 2 and elements.stride(-1) == 1:
        return elements[..., :: elements.shape[-1] - 1]
    return elements
