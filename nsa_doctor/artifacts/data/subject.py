"""A source of batches as something to examine: what checks of data are given."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import reproduce

Split = Literal["train", "heldout"]
Targets = Literal["next", "same"]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """One way to open the data: a split, one rank of several, and a saved position to go on from."""

    split: Split = "train"
    rank: int = 0
    world_size: int = 1
    state: Any = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSubject:
    """`open` gives a new iterable of batches each time; `takes` says what of an opening it heeds beside `train`.

    What is None is not known and not held against it. targets: `next` when each target is the token after its input,
    `same` when the model shifts them itself. endless: the data never ends. options: the words that name it on the
    command line. `seen` remembers what was taken from it, so that no check opens it twice for the same.
    """

    name: str
    open: Callable[[Opening], Iterable[Any]]
    takes: frozenset[str] = frozenset()
    seq_len: int | None = None
    vocab_size: int | None = None
    batch_size: int | None = None
    targets: Targets | None = None
    is_endless: bool = False
    limit_seconds: float = 120.0
    num_batches: int = 16
    num_ranks: int = 2
    description: str = ""
    where: Place = field(default_factory=Place)
    packages: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    listen: Callable[[str], None] = field(default=lambda text: None, repr=False)
    seen: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def reproduce(self) -> str:
        """The line to paste that looks at it again."""
        return reproduce("data", self.options)
