"""What was measured, as frozen records that travel between processes as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any, Literal, Self

from nsa_doctor.core.text import joined

Mode = Literal["train", "eval", "no_grad"]
Values = Literal["normal", "zeros", "constant", "huge_token", "large", "aligned", "opposed", "repeated"]
MODES: tuple[Mode, ...] = ("train", "eval", "no_grad")
VALUES: tuple[Values, ...] = ("normal", "zeros", "constant", "huge_token", "large", "aligned", "opposed", "repeated")
DTYPES = ("float32", "float64", "bfloat16", "float16")
GRADIENTS = "gradients"
OUTPUT = "output"
OTHERS = "other outputs"
TARGETS = (OUTPUT, OTHERS, GRADIENTS)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One place to measure: `train` is training mode with gradients, `eval` keeps autograd on, `no_grad` does not."""

    length: int
    dtype: str = "float32"
    mode: Mode = "train"
    values: Values = "normal"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in the subject: dotted module path ("" is the subject itself), its class, and a line of source.

    `library` is the line of a library, `file:line`, where the subject's own line called one that was at work there.
    """

    module: str = ""
    module_class: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    library: str = field(default="", compare=False)

    @property
    def module_text(self) -> str:
        """The module as a reader wants it: path and class, the class alone for the subject itself."""
        if self.module and self.module_class:
            return f"{self.module} ({self.module_class})"
        return self.module or self.module_class

    @property
    def line_text(self) -> str:
        """`file:line`, or nothing where no line is known."""
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def short_line(self) -> str:
        """The line, its file by its name; nothing where no line is known."""
        return f"{PurePath(self.file).name}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        return " at ".join(part for part in (self.module_text, self.line_text) if part) or "an unknown place"


@dataclass(frozen=True, kw_only=True)
class Census:
    """How many values of a tensor (or of all gradients) are finite, and how large the finite ones are.

    A row is one token's values, or one tensor among the gradients; `first_bad` names the first row not finite.
    """

    name: str
    num_values: int
    num_nan: int
    num_inf: int
    largest: float
    num_rows: int
    num_bad_rows: int
    first_bad: str = ""

    @property
    def is_finite(self) -> bool:
        """Whether no value is NaN or infinite."""
        return self.num_nan + self.num_inf == 0


TroubleKind = Literal["raised", "wrong_shape", "out_of_memory", "timeout", "died", "not_measured"]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why there is nothing to count: what the subject did instead of returning a tensor."""

    kind: TroubleKind
    message: str
    phase: str = ""
    place: Place = field(default_factory=Place)
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one run of the subject at one point gave; `seconds` and `peak_bytes` cover forward and backward."""

    point: Point
    censuses: tuple[Census, ...] = ()
    seconds: float | None = None
    peak_bytes: int | None = None
    trouble: Trouble | None = None
    notes: tuple[str, ...] = ()

    def census(self, name: str) -> Census | None:
        """The census of that name, or None when it was not taken."""
        return next((census for census in self.censuses if census.name == name), None)

    def is_bad(self, name: str) -> bool:
        """Whether that tensor was counted and is not finite."""
        census = self.census(name)
        return census is not None and not census.is_finite

    @property
    def is_finite(self) -> bool:
        """Whether all outputs and gradients are finite; a branch that reaches neither does not count."""
        return self.trouble is None and not any(self.is_bad(target) for target in TARGETS)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        trouble = data["trouble"]
        return cls(
            point=Point(**data["point"]),
            censuses=tuple(Census(**census) for census in data["censuses"]),
            seconds=data["seconds"],
            peak_bytes=data["peak_bytes"],
            trouble=None if trouble is None else trouble_from_json(trouble),
            notes=tuple(data["notes"]),
        )


@dataclass(frozen=True, kw_only=True)
class NonfiniteOrigin:
    """Where a non-finite value that reaches an output or a gradient came into being.

    `value` is NaN or inf; `operation` what computed it (or what held it: a parameter, the input); `phase` is build,
    forward or backward; `detail` says what is known beyond that, and never more. `grown_at` is the one line that made
    of ordinary values those at an end of the dtype's range which this operation was given, if there is one.
    """

    value: str
    operation: str
    phase: str
    place: Place
    detail: str = ""
    grown_at: Place = Place()

    @property
    def growth(self) -> dict[str, str]:
        """The evidence of that line, its file by its name; nothing where none is known."""
        place = self.grown_at
        return {"grown_at": place.short_line} if place.file else {}


Trail = tuple[Place, ...]
"""Lines that a value comes through, the last one last."""


@dataclass(frozen=True, kw_only=True)
class RaisedOrigin:
    """What a reader should know beside the line that raises.

    `called_at` is the line that called the function it is in, `given` whence things come that the line was given.
    """

    called_at: Place = Place()
    given: tuple[Trail, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        given = tuple(tuple(Place(**place) for place in trail) for trail in data["given"])
        return cls(called_at=Place(**data["called_at"]), given=given)

    def __str__(self) -> str:
        """The end of a sentence, files by their names; nothing of what is not known."""
        called = f", called at {self.called_at.short_line}" if self.called_at.file else ""
        trails = joined([" -> ".join(place.short_line for place in trail) for trail in self.given])
        return f"{called}; what raises is given what comes from {trails}" if trails else called


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The births found by tracing one point; none and a `reason` when tracing could not show any.

    num_operations: those of all traced passes, for the time that they took. Of a point that raises, `raised` says
    who called the line that does, and where it has what it is given from.
    """

    point: Point
    target: str
    origins: tuple[NonfiniteOrigin, ...] = ()
    reason: str = ""
    num_operations: int = 0
    raised: RaisedOrigin = field(default_factory=RaisedOrigin)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        places = ({name: Place(**origin[name]) for name in ("place", "grown_at")} for origin in data["origins"])
        origins = tuple(NonfiniteOrigin(**{**o, **p}) for o, p in zip(data["origins"], places, strict=True))
        raised = RaisedOrigin.from_json(data["raised"])
        return cls(**{**data, "point": Point(**data["point"]), "origins": origins, "raised": raised})


def trouble_from_json(data: Mapping[str, Any]) -> Trouble:
    """Read a Trouble that `to_json` wrote."""
    return Trouble(**{**data, "place": Place(**data["place"])})


def to_json(record: Point | Trouble | Measurement | Diagnosis) -> dict[str, Any]:
    """The record as plain dictionaries, lists and scalars."""
    return asdict(record)
