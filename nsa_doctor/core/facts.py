"""What the framework itself observes, by name: a check declares the names it answers, and the registry finds it."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal

Need = Literal["gradients", "values", "dtypes"]

DEVICE_LOST = "device lost"  # the kind of a finding after which the process that made it is of no more use


class Fact(StrEnum):
    """An observation that no check makes and exactly one check answers: it declares the value in `answers`."""

    RAISED = "raised"
    """The subject raises: while it is loaded, in a sweep, while it is timed."""
    WRONG_SHAPE = "wrong shape"
    """The subject returns something else than a tensor of the shape of its input."""
    TIMEOUT = "timeout"
    """A call does not return within its time limit."""
    DIED = "died"
    """A call ends its process."""
    NONFINITE_OUTPUT = "non-finite output"
    """An output of a sweep holds NaN or infinity, whatever the mode, the values and the dtype."""
    NONFINITE_GRADIENT = "non-finite gradient"
    """A gradient of a sweep holds NaN or infinity where the output is finite."""
    NONFINITE_BY_MODE = "non-finite by mode"
    """An output of a sweep is not finite in some modes, and finite in another at the same point."""
    NONFINITE_BY_VALUES = "non-finite by values"
    """An output or a gradient of a sweep is not finite on unusual input, and finite on ordinary input."""
    NONFINITE_BY_DTYPE = "non-finite by dtype"
    """An output or a gradient of a sweep is not finite in half precision, and finite in a wider dtype."""
    BELOW_FLOOR = "below floor"
    """`nsa-doctor throughput` measures less than a file of floors asks for."""
    NO_BATCHES = "no batches"
    """The process that opens a source of batches dies, or gives no sign of life."""
    REPLAYED_STEPS = "replayed steps"
    """Steps of a training run are computed again, for a check to compare."""


SWEPT = frozenset({
    *(Fact.RAISED, Fact.WRONG_SHAPE, Fact.TIMEOUT, Fact.DIED, Fact.NONFINITE_OUTPUT, Fact.NONFINITE_GRADIENT),
    *(Fact.NONFINITE_BY_MODE, Fact.NONFINITE_BY_VALUES, Fact.NONFINITE_BY_DTYPE),
})  # fmt: skip
_NEEDS: Mapping[Fact, Need] = {
    Fact.NONFINITE_GRADIENT: "gradients",
    Fact.NONFINITE_BY_VALUES: "values",
    Fact.NONFINITE_BY_DTYPE: "dtypes",
}


def needs_of(facts: Iterable[Fact]) -> frozenset[Need]:
    """What a sweep has to compute or to vary before its silence means that none of these facts is there."""
    return frozenset(_NEEDS[fact] for fact in facts if fact in _NEEDS)


class Violation(StrEnum):
    """A property that `nsa-doctor fuzz` finds broken: one check declares the value in `fuzzed`."""

    HANGS = "hangs"
    """A call does not return."""
    DIES = "dies"
    """A call ends its process."""
    RAISES = "raises"
    """A call raises on valid input."""
    VALID_REFUSED = "valid refused"
    """A geometry or an argument that the equations define is refused."""
    INVALID_ACCEPTED = "invalid accepted"
    """A geometry or an argument that they do not define is taken."""
    WRONG_SHAPE = "wrong shape"
    """The result has another shape or dtype than it should."""
    NOT_FINITE = "not finite"
    """The output is not finite on ordinary input."""
    NOT_FINITE_ON_VALUES = "not finite on some values"
    """The output is not finite on unusual input."""
    GRADIENT_NOT_FINITE = "gradient not finite"
    """A gradient is not finite where the output is."""
    GRADIENT_WRONG = "wrong gradient"
    """A gradient differs from that of dense attention under the same mask, or is not finite where that one is."""
    GRADIENT_REACHES_OTHERS = "gradient reaches others"
    """The gradient of one query reaches another query, or a key that it may not read."""
    ARGUMENT_WRITTEN = "argument written"
    """The call writes into an argument."""
    FUTURE_CHANGES_OUTPUT = "future changes output"
    """Later tokens change the output before them."""
    PREFIX_DIFFERS = "prefix differs"
    """The first tokens alone give another output."""
    ROW_ALONE_DIFFERS = "row alone differs"
    """A row of the batch alone gives another output."""
    DEPENDS_ON_STRIDES = "depends on strides"
    """The same values in another memory layout give another output."""
    CALLS_DIFFER = "two calls differ"
    """Two calls on the same input give two outputs."""
    OUT_OF_BOUNDS = "out of bounds"
    """A chosen slot is no block."""
    UNSORTED = "unsorted"
    """Chosen slots do not ascend with the empty ones last."""
    DUPLICATE = "duplicate"
    """A block is chosen twice."""
    FORCED_BLOCK_MISSING = "forced block missing"
    """The first block or one of the two most recent is not chosen."""
    TOO_MANY = "too many"
    """More blocks are chosen than the budget allows."""
    TOO_FEW = "too few"
    """Fewer blocks are chosen than the budget and the candidates allow."""
    FUTURE_BLOCK = "future block"
    """A chosen block starts after the query."""
    TIE_TO_HIGHER_INDEX = "tie to the higher index"
    """Of blocks with one score, the one with the higher index is chosen."""
    NOT_BEST_BY_SCORE = "not the best by score"
    """A block is chosen over one that scores higher."""
    CHOICE_DEPENDS_ON_OTHERS = "depends on others"
    """A row, group or query alone is chosen for differently."""
    SPANS_DISAGREE = "spans disagree"
    """A function between slots, ranges, masks and counts differs from plain sets."""
    READS_OTHER_KEYS = "reads other keys"
    """A branch reads a key that it may not, or leaves out one that it must read, forward or backward."""
    WEIGHTS_DO_NOT_SUM = "weights do not sum to one"
    """The attention weights of a query that sees a key do not sum to one."""
    DIFFERS_FROM_DENSE = "differs from dense attention"
    """A branch differs from dense attention under the same mask."""
    SLOTS_NOT_HELD = "slots not held"
    """Attention returns other slots than it was given."""
