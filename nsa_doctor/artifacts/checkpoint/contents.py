"""What a checkpoint holds, before a value of it is read: tensors by name, and where their bytes lie."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nsa_doctor.artifacts.checkpoint.source import Source


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """How stored whole numbers become values: `zeros` are subtracted, and the difference is multiplied by `scales`.

    Tensors hold one of each for every index along `axis`.
    """

    scales: "Stored | float"
    zeros: "Stored | float"
    axis: int = 0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor as a view of stored bytes: its first element lies `first` elements into `storage`.

    `unread` says why its values cannot be read, where they cannot; shape and dtype are known all the same. With a
    `storage` it can still be seen whether they are finite.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    storage: Source | None = None
    first: int = 0
    is_swapped: bool = False
    quantised: Quantised | None = None
    unread: str = ""


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A tensor that torch makes of `parts`, a sparse one for example: what it makes of them is `unread`, and why.

    `shape` and `dtype` are empty where they are not known; one that `is_opaque` has values that are in no part.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    unread: str
    parts: tuple[Stored, ...] = ()
    is_opaque: bool = False


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a tensor that is stored in several: where it lies in the whole, and how to get at it."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    open: Callable[[], "Contents"]


@dataclass(frozen=True, kw_only=True)
class Divided:
    """A tensor stored in pieces, each to be opened when it is needed."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


Tensor = Stored | Divided | Composed


@dataclass(frozen=True, kw_only=True)
class Summed:
    """Stored bytes whose CRC-32 is known."""

    name: str
    storage: Source
    crc: int


@dataclass(frozen=True, kw_only=True)
class Hashed:
    """A file whose SHA-256 is known."""

    source: Source
    sha256: str


@dataclass(kw_only=True)
class Contents:
    """The tensors of a checkpoint and its files, what can be held against a checksum, what is said of gates in it.

    `opaque` are parts that hold no tensor and are still to be looked at, by name.
    """

    kind: str
    files: list[Source]
    tensors: list[Tensor] = field(default_factory=list)
    summed: list[Summed] = field(default_factory=list)
    hashed: list[Hashed] = field(default_factory=list)
    opaque: Mapping[str, Callable[[], "Contents"]] = field(default_factory=dict)
    settings: dict[str, str | float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(file.num_bytes for file in self.files)
