"""A batch as a loader gave it, read into arrays: a mapping, a pair (x, y), one array of rows, or a `nsa.data.Batch`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

INPUTS = ("input_ids", "inputs", "input", "tokens", "ids", "x", "text")
TARGETS = ("labels", "label", "targets", "target", "target_ids", "y")
_MASKS = ("attention_mask", "mask", "loss_mask")
_DOCUMENTS = ("documents", "document_ids", "doc_ids", "document_id", "seq_ids", "segment_ids")
_ATTRIBUTES = ("input_ids", "inputs")
_IGNORED = -100
_MOST_NAMES = 5

Array = np.ndarray[Any, Any]


class UnreadableBatchError(ValueError):
    """What a loader gave is no batch of rows; one sentence says what it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Rows of one batch, each [B, S] or [B, S + 1], in the dtype they came in.

    targets: None where rows of tokens come alone. target_name: what the loader calls them, nothing in a pair.
    ignored: where a target is not to be predicted. documents: which document each token is of, where that is known.
    epoch: how often all data had been read before, where that is known.
    """

    inputs: Array
    targets: Array | None = None
    target_name: str = ""
    ignored: Array | None = None
    documents: Array | None = None
    epoch: int | None = None

    @property
    def num_rows(self) -> int:
        """B."""
        return int(self.inputs.shape[0])

    def plain(self) -> dict[str, Any]:
        """A mapping that reads as this batch again."""
        parts = {"input_ids": self.inputs, "documents": self.documents, "epoch": self.epoch}
        targets = self.targets
        if targets is not None and self.ignored is not None and self.ignored.any():
            targets = np.where(self.ignored, _IGNORED, targets)
        parts |= {self.target_name or "targets": targets}
        return {name: value for name, value in parts.items() if value is not None}


def read_batch(given: Any) -> Batch:
    """Raises UnreadableBatchError."""
    if hasattr(given, "tokens") and hasattr(given, "documents"):  # nsa.data.Batch, or one like it
        return _made(given.tokens, None, "", None, given.documents, getattr(given, "epoch", None))
    if hasattr(given, "data") and isinstance(getattr(given, "data", None), Mapping):  # transformers' BatchEncoding
        given = given.data
    if not isinstance(given, Mapping) and any(hasattr(given, name) for name in _ATTRIBUTES):
        names = (*INPUTS, *TARGETS, *_MASKS, *_DOCUMENTS)
        given = {name: getattr(given, name) for name in names if hasattr(given, name)}
    if isinstance(given, Mapping):
        return _of_mapping(given)
    if isinstance(given, (tuple, list)) and given and all(_is_array(part) for part in given):
        if len(given) == 1:
            return _made(given[0])
        if np.ndim(given[0]) and (np.ndim(given[0]) > 1 or isinstance(given, tuple)):
            return _made(given[0], given[1])
    return _made(given)


def _of_mapping(given: Mapping[Any, Any]) -> Batch:
    inputs = next((name for name in INPUTS if name in given), None)
    if inputs is None:
        names = ", ".join(str(name) for name in list(given)[:_MOST_NAMES]) or "nothing"
        raise UnreadableBatchError(f"a mapping of {names}, with none of {', '.join(INPUTS)}")
    targets = next((name for name in TARGETS if given.get(name) is not None), None)
    masks = [given[name] for name in _MASKS if given.get(name) is not None]
    documents = next((given[name] for name in _DOCUMENTS if given.get(name) is not None), None)
    epoch = given.get("epoch")
    made = _made(given[inputs], given[targets] if targets else None, targets or "", masks[:1], documents)
    return made if not isinstance(epoch, int) else _with_epoch(made, epoch)


def _with_epoch(batch: Batch, epoch: int) -> Batch:
    return Batch(**{**vars(batch), "epoch": epoch})


def _made(
    inputs: Any,
    targets: Any = None,
    target_name: str = "",
    masks: Sequence[Any] | None = None,
    documents: Any = None,
    epoch: int | None = None,
) -> Batch:
    rows = as_rows(inputs, "inputs")
    ids = None if targets is None else as_rows(targets, target_name or "targets")
    ignored = None
    if ids is not None:
        ignored = ids == _only_negative(ids)
        for mask in masks or ():
            shown = as_rows(mask, "mask")
            if shown.shape == ids.shape:
                ignored = ignored | (shown == 0)
    return Batch(
        inputs=rows,
        targets=ids,
        target_name=target_name,
        ignored=ignored,
        documents=None if documents is None else as_rows(documents, "documents"),
        epoch=epoch,
    )


def _only_negative(ids: Array) -> int:
    """The number that stands for a target not to be predicted: -100, or another where it is the only negative one."""
    if not np.issubdtype(ids.dtype, np.signedinteger) or not ids.size:
        return _IGNORED
    negative = ids[ids < 0]
    return int(negative.flat[0]) if negative.size and (negative == negative.flat[0]).all() else _IGNORED


def as_rows(value: Any, name: str) -> Array:
    """A tensor, array or list of rows as an array [rows, columns]; raises UnreadableBatchError."""
    if isinstance(value, (list, tuple)) and len({_length(row) for row in value}) > 1:
        lengths = sorted({_length(row) for row in value})
        raise UnreadableBatchError(f"rows of {name} with lengths from {lengths[0]} to {lengths[-1]} in one batch")
    if isinstance(value, (list, tuple)) and value and _is_tensor(value[0]):
        value = np.stack([_array(row) for row in value])
    found = _array(value)
    if found.dtype.kind not in "iufb":
        raise UnreadableBatchError(f"{name} that are {_kind(value)}, not numbers")
    if found.ndim == 1:
        if not found.size:
            raise UnreadableBatchError(f"{name} that hold nothing")
        found = found[None]
    if found.ndim != 2:
        raise UnreadableBatchError(f"{name} of shape {list(found.shape)}, not [rows, tokens]")
    return found


def _array(value: Any) -> Array:
    if _is_tensor(value):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return np.array(value.numpy())  # a copy: the loader may fill the same memory again
    if isinstance(value, (list, tuple, np.ndarray)):
        return np.array(value)
    raise UnreadableBatchError(f"{_kind(value)}, which is no tensor, mapping or pair")


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "numpy")


def _is_array(value: Any) -> bool:
    return _is_tensor(value) or isinstance(value, (np.ndarray, list))


def _length(row: Any) -> int:
    return len(row) if hasattr(row, "__len__") else -1


def _kind(value: Any) -> str:
    kind = type(value)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__name__}"
