"""The parts of a subject that can be examined: what an Adapter's `seams` call them, and what people do."""

from collections.abc import Iterable, Iterator, Mapping

SEAMS: Mapping[str, str] = {  # what stands behind "it offers no"
    "build": "way to build it",
    "forward": "forward pass",
    "branches": "outputs of its branches",
    "attend": "selected attention by itself",
    "select": "choice of blocks by given scores",
    "choose": "choice of blocks as its forward makes it",
    "gate": "weights of its branches",
    "prefill": "way to read a prompt",
    "step": "way to decode a token",
    "fill_unwritten": "way to overwrite unused memory of its cache",
    "cache_bytes": "size of its cache",
    "cache_reads": "count of the keys that decoding reads",
    "reorder": "way to reorder the rows of its cache",
    "crop": "way to crop its cache",
    "fork": "way to copy its cache",
    "reset": "way to reset its cache",
    "reset_rows": "way to reset rows of its cache",
    "packed": "way to pack sequences",
    "documents": "way to separate documents in a row",
    "padded": "way to mask padding",
    "loss": "loss",
    "train_step": "training step",
    "loop": "training loop",
    "variants": "variants by an option",
    "routes": "choice of implementations by flags",
    "oracle": "reference to compare with",
    "anatomy": "inner tensors",
    "twins": "other implementations",
    "spans": "functions of token ranges",
    "generate": "greedy generation",
    "draw": "sampling of a token",
    "max_slowdown": "bound on its slowdown",
}


def offers_no(seams: Iterable[str], whom: str = "it") -> str:
    """`it offers no way to pack sequences (seam packed)`: why a check does not apply that needs one of these."""
    return f"{whom} offers no {' and no '.join(_named(seam) for seam in seams)}"


def parts_not_offered(reason: str) -> Iterator[str]:
    """The parts that `offers_no` named in a reason, as people call them."""
    yield from (phrase for seam, phrase in SEAMS.items() if f"no {_named(seam)}" in reason)


def _named(seam: str) -> str:
    return f"{SEAMS[seam]} (seam {seam})" if seam in SEAMS else seam  # a check of somebody else's may ask for anything
