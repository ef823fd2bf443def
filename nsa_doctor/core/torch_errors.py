"""What torch's exceptions say: most of its errors have no class of their own, and are known by their text."""

from collections.abc import Mapping
from enum import StrEnum


class TorchError(StrEnum):
    """An error of torch with one cause; a check declares in `explains` the causes that it locates."""

    SAVED_TENSOR_MODIFIED = "saved tensor modified"
    """Backward needs a tensor that was written into after it was saved."""
    GRAPH_FREED = "graph freed"
    """Backward enters a graph whose tensors an earlier backward has freed."""
    ONE_VALUE_PER_CHANNEL = "one value per channel"
    """Batch norm in training is given a single value, of which there is no variance."""
    HOST_MEMORY = "out of host memory"
    """The allocator of the CPU has no memory left."""
    INDEX_OUT_OF_RANGE = "index out of range"
    """An index lies beyond the end of what it is looked up in."""
    SIZES_DIFFER = "sizes differ"
    """Two operands have other sizes along an axis."""
    SAVES_WATCHED = "saves watched"
    """A transform of torch.func is entered while somebody watches what is saved for backward."""
    FORKED = "forked"
    """Backward runs in a copy of a process whose autograd had threads."""
    NO_KERNEL = "no kernel"
    """The device cannot do an operation in a dtype, in the words of torch or of oneDNN; another device may."""


_WORDS: Mapping[TorchError, tuple[str, ...]] = {
    TorchError.SAVED_TENSOR_MODIFIED: ("modified by an inplace operation",),
    TorchError.GRAPH_FREED: ("backward through the graph a second time",),
    TorchError.ONE_VALUE_PER_CHANNEL: ("Expected more than 1 value per channel when training",),
    TorchError.HOST_MEMORY: ("DefaultCPUAllocator",),
    TorchError.INDEX_OUT_OF_RANGE: ("index out of range", "out of bounds"),
    TorchError.SIZES_DIFFER: ("must match the size of tensor", "must match the existing size"),
    TorchError.SAVES_WATCHED: ("don't yet support saved tensor hooks",),
    TorchError.FORKED: ("autograd's threading in combination with fork-based multiprocessing",),
    TorchError.NO_KERNEL: ("not implemented for", "create a primitive", "execute a primitive"),
}


def error_kind(text: str) -> TorchError | None:
    """The cause of an exception of torch by what it says, or None for any other text."""
    return next((kind for kind, phrases in _WORDS.items() if any(words in text for words in phrases)), None)


def error_evidence(text: str) -> dict[str, str]:
    """`error`, the cause by name, as evidence of a finding; empty for an exception that torch does not raise."""
    kind = error_kind(text)
    return {} if kind is None else {"error": kind.value}
