"""What was read of a checkpoint, as frozen records that travel between processes as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from nsa_doctor.artifacts.checkpoint.fault import FaultKind

Activation = Literal["softmax", "sigmoid"]
Illness = Literal["not finite", "zero-initialised", "collapsed", "saturated", "dead branch"]
FLAT_SLOPE = 2.0**-11.5  # √eps of float32: a step that turns what is gated over moves nothing
NEARLY_ALL = 0.99
NOT_KNOWN = "not known"  # the form of what is called like a gate and not understood as one
_ROUNDING = 1e-12  # of the probe, which is computed in float64


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The finite values of one tensor in numbers; `zeros` is the share that is exactly zero."""

    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    norm: float
    zeros: float
    num_values: int
    num_bad: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether every value is exactly zero."""
        return self.zeros == 1.0 and not self.num_bad


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One branch's weight over all probe inputs."""

    name: str
    mean: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a gate makes of standard normal inputs.

    `entropy` is 1 where branches share evenly and 0 where one takes all; `flat` the share of weights whose slope is as
    good as zero, `is_stuck` whether one of them is flat by itself on nearly all inputs; `spread` how far a weight goes
    from one input to another; `leader` the branch that takes nearly everything most often, for the share `led` of the
    inputs; `dead` the branches that get nothing.
    """

    num_inputs: int
    activation: Activation
    branches: tuple[Branch, ...]
    entropy: float
    flat: float
    spread: float
    leader: int
    led: float
    is_stuck: bool = False
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a gate went from one file to the next: the norm of the difference over that of the earlier values.

    `others` is how many tensors beside the gate, in the module that holds it, differ between the files.
    """

    since: str
    relative: float
    others: int


@dataclass(frozen=True, kw_only=True)
class GateRecord:
    """One gate of a file: its last layer, the hidden one where there is one, and what they make of probe inputs.

    `layer` is the module without what wraps the whole model, `module` the module as the file names it; `form` says in
    words what it is taken for, `unprobed` why there is no probe.
    """

    layer: str
    module: str
    form: str
    weight: Figures | None
    bias: Figures | None = None
    hidden_weight: Figures | None = None
    hidden_bias: Figures | None = None
    probe: Probe | None = None
    unprobed: str = ""
    drift: Drift | None = None

    @property
    def num_bad(self) -> int:
        """How many of its parameters are not finite."""
        parts = (self.weight, self.bias, self.hidden_weight, self.hidden_bias)
        return sum(part.num_bad for part in parts if part is not None)

    @property
    def is_constant(self) -> bool:
        """Whether it has no input: learned numbers alone."""
        return self.weight is None

    @property
    def is_blind(self) -> bool:
        """Whether it gives every input the same weights, though nothing worse is wrong with it."""
        return self.probe is not None and self.probe.spread <= _ROUNDING and not self.illnesses

    @property
    def illnesses(self) -> tuple[Illness, ...]:
        """What is wrong with it, the gravest first; nothing when it is healthy or could not be probed."""
        if self.num_bad:
            return ("not finite",)
        if self.form == NOT_KNOWN:
            return ()
        if self.weight is not None and self.weight.is_zero and (self.bias is None or self.bias.is_zero):
            return ("zero-initialised",)
        if self.probe is None:
            return ()
        found: list[Illness] = []
        if self.probe.led >= NEARLY_ALL:
            found.append("collapsed")
        if self.probe.flat >= NEARLY_ALL:
            found.append("saturated")
        if self.probe.dead:
            found.append("dead branch")
        return tuple(found)

    @property
    def verdict(self) -> str:
        """One word or two for a table."""
        if self.illnesses:
            return self.illnesses[0]
        return "healthy" if self.probe is not None else "not probed"


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """A tensor with NaN or infinities that no mask has, of `num_values`."""

    name: str
    num_nan: int
    num_inf: int
    num_values: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything that was read of one checkpoint; with a `fault` nothing else is known.

    `sha256` is that of the file, of several that of theirs one after the other, empty where there was no time.
    `unseen` says which tensors were not looked at and why, `similar` names that look like gates where none matched;
    `shapes` of all tensors are there when they were asked for.
    """

    path: str
    kind: str = ""
    fault: FaultKind | None = None
    sentence: str = ""
    num_bytes: int = 0
    sha256: str = ""
    num_tensors: int = 0
    gates: tuple[GateRecord, ...] = ()
    not_finite: tuple[NotFinite, ...] = ()
    num_not_finite: int = 0
    unseen: str = ""
    similar: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    peak_bytes: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The record as plain dictionaries, lists and scalars."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        gates = tuple(_gate(gate) for gate in data["gates"])
        not_finite = tuple(NotFinite(**each) for each in data["not_finite"])
        texts = {name: tuple(data[name]) for name in ("similar", "notes")}
        shapes = {name: tuple(shape) for name, shape in data["shapes"].items()}
        return cls(**{**data, **texts, "shapes": shapes, "gates": gates, "not_finite": not_finite})


def _gate(data: Mapping[str, Any]) -> GateRecord:
    figures = {
        name: None if data[name] is None else Figures(**{**data[name], "shape": tuple(data[name]["shape"])})
        for name in ("weight", "bias", "hidden_weight", "hidden_bias")
    }
    probe, drift = data["probe"], data["drift"]
    if probe is not None:
        branches = tuple(Branch(**branch) for branch in probe["branches"])
        probe = Probe(**{**probe, "branches": branches, "dead": tuple(probe["dead"])})
    return GateRecord(**{**data, **figures, "probe": probe, "drift": None if drift is None else Drift(**drift)})
