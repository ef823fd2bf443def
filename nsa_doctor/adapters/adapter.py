"""For a module that is not called as `module(x)`: says how, and which further parts of it can be examined."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.declared import declarations
from nsa_doctor.core.lengths import ChangesAtLengths
from nsa_doctor.core.measurement import MODES, Mode
from nsa_doctor.core.seams import SEAMS
from nsa_doctor.subject.contract import InputKind

_OWN = ("build", "forward")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """What a factory may return in place of a module; what is left out is found out by asking the module.

    make(): a new module; its weights may be random. call(module, x): one forward pass, x being embeddings
    [B, S, width] or token ids [B, S]; the output, or a tuple, mapping or object that holds it. modes: those the module
    runs in. max_length: the longest sequence it serves. geometry: an `nsa.ops.geometry.Geometry` (or an object with
    `change_lengths`), for block-sparse attention. seams: further callables by the names that
    `nsa_doctor.subject.contract.Subject` lists, such as prefill and step for decoding or gate for branch weights.
    spec: what it is meant to be, such as ("bidirectional",). notes: what a report says of it. memory_exponent,
    time_exponent, max_slowdown: what the method needs, as `Subject` says.

    Raises ValueError for a seam or a word that does not exist.
    """

    make: Callable[[], nn.Module]
    call: Callable[[nn.Module, Tensor], Any] | None = None
    input: InputKind | None = None
    width: int | None = None
    modes: tuple[Mode, ...] = MODES
    max_length: int | None = None
    geometry: ChangesAtLengths | None = None
    seams: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    spec: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    memory_exponent: float | None = None
    time_exponent: float | None = None
    max_slowdown: float | None = None

    def __post_init__(self) -> None:
        known = [name for name in SEAMS if name not in _OWN]
        unknown = [name for name in self.seams if name not in known]
        if unknown:
            raise ValueError(f"seams must be among {', '.join(known)}, got {unknown[0]!r}")
        declarations("spec", self.spec)
        wrong = [mode for mode in self.modes if mode not in MODES]
        if wrong or not self.modes:
            raise ValueError(f"modes must be some of {', '.join(MODES)}, got {self.modes!r}")
