"""An attention function as something to examine: the problem it is given, how it is called, what it answers."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Generator, Tensor

from nsa_doctor.core.check import Profile
from nsa_doctor.core.function_spec import Alignment, FunctionSpec
from nsa_doctor.core.measurement import Place

Layout = Literal["bshd", "bhsd", "shd"]
Need = Literal["must", "may", "default"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one call: `groups` heads of keys and values, `head` and `value` channels.

    `parts` are (queries, keys) of each of several sequences that lie one behind the other in one row; `filled` is how
    many of the keys each row of a cache holds.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    groups: int
    head: int
    value: int
    parts: tuple[tuple[int, int], ...] = ()
    filled: tuple[int, ...] = ()

    def __str__(self) -> str:
        length = f"S={self.queries}" if self.queries == self.keys else f"Sq={self.queries}, Sk={self.keys}"
        length += (
            f" ({len(self.parts)} sequences of {', '.join(_part(*part) for part in self.parts)})" if self.parts else ""
        )
        length += f" ({', '.join(map(str, self.filled))} of them filled)" if self.filled else ""
        heads = f"{self.heads} heads" if self.heads == self.groups else f"{self.heads}/{self.groups} heads"
        head = f"D={self.head}" if self.head == self.value else f"Dk={self.head}, Dv={self.value}"
        return f"B={self.batch}, {length}, {heads}, {head}"


def _part(queries: int, keys: int) -> str:
    return f"{queries}" if queries == keys else f"{queries}/{keys}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Branch:
    """One attention among those whose gated sum is the output: what it may read of which keys, and its gate.

    seen: bool [B or 1, H or 1, Sq, Sk]. gate: the name of an input [B, Sq, H], or one [B, Sq, G, 3] with its `place`.
    """

    seen: Tensor
    gate: str | None = None
    place: int | None = None
    keys: str = "k"
    values: str = "v"

    def gating(self, inputs: Mapping[str, Tensor], heads: int) -> Tensor:
        """The gate's values, [B, Sq, H]."""
        assert self.gate is not None
        value = inputs[self.gate]
        value = value if self.place is None else value[..., self.place]
        return value.repeat_interleave(heads // value.shape[2], 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sparse:
    """What a sparse operator is given beside queries: its inputs, its branches, and its choice of blocks."""

    inputs: Mapping[str, Tensor]
    branches: tuple[Branch, ...]
    constants: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Inputs of one call in the doctor's own layout, and all that is needed to say what is right.

    inputs: q [B, Sq, H, Dk], k [B, Sk, G, Dk], v [B, Sk, G, Dv], sinks [H], gates [B, Sq, H], each as declared; bias
    [B or 1, Sq or 1, H or 1, Sk or 1] is added to the scores. branches: one, unless a sparse operator mixes several.
    slopes: ALiBi's, [H] or [B, H]. constants: what else is needed.
    dout: the gradient of the output [B, Sq, H, Dv]. dlse: that of the logarithm of the sum of exponentials [B, H, Sq],
    where that is differentiated too.
    """

    shape: Shape
    spec: FunctionSpec
    inputs: Mapping[str, Tensor]
    branches: tuple[Branch, ...]
    scale: float
    dout: Tensor
    dlse: Tensor | None = None
    slopes: Tensor | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""

    @property
    def seen(self) -> Tensor:
        """Keys that any branch may read."""
        result = self.branches[0].seen
        for branch in self.branches[1:]:
            result = result | branch.seen
        return result


@dataclass(frozen=True, kw_only=True)
class Keyword:
    """One argument of a call, by the names it goes by, and the word of the spec that asks for it.

    need: without it there is no call (`must`), the function may do without (`may`), or it is given only to a function
    whose own default is another (`default`).
    """

    names: tuple[str, ...]
    value: Any
    word: str
    need: Need = "must"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What one call is given: tensors and sizes by position, the rest by name."""

    positional: tuple[Any, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How functions of one kind are called.

    arguments(problem, tensors): tensors are in `layouts`, those that need a gradient are leaves. read(result): the
    output, and the logarithm of the sum of exponentials [B, H, Sq] where it is handed out. layout: of queries, keys and
    values; output: of what is returned, None where it is the same. align: where the diagonal runs by itself. refuses:
    words of the spec that cannot be said here, and why. has_parts: sequences lie one behind the other. is_cache: keys
    lie in a cache that is filled in part. is_forward_only: no gradients. make: the inputs of a sparse operator.
    has_one_pair: every branch reads the same keys and values. has_bias: what is added to the scores can be given as a
    tensor. has_slopes_of_rows: so can ALiBi slopes of each row of the batch. lse_gradient: whether what is handed out
    beside the output `must` be differentiated like it, or `may` be left out of every gradient. ways: other ways to make
    the same call, in words, and what a problem's constants say of them. variants: from a usual problem those that some
    functions take arguments for, in words.
    """

    name: str
    summary: str
    layout: Layout
    arguments: Callable[[Problem, Mapping[str, Tensor]], Arguments]
    read: Callable[[Any, Problem], Mapping[str, Any]]
    output: Layout | None = None
    align: Alignment = "bottom_right"
    refuses: Mapping[str, str] = field(default_factory=dict)
    has_parts: bool = False
    is_cache: bool = False
    make: Callable[[FunctionSpec, Shape, Generator], Sparse] | None = None
    has_one_pair: bool = True
    is_forward_only: bool = False
    has_bias: bool = False
    has_slopes_of_rows: bool = False
    lse_gradient: Literal["none", "may", "must"] = "none"
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    variants: Callable[[Problem], Mapping[str, Problem]] = lambda problem: {}


@dataclass(frozen=True, kw_only=True)
class FunctionSubject:
    """A function, how it is called and what it is declared to compute; `replace(subject, function=…)` injects a bug.

    `reference` is another function, called alike, that is right, and `given` are inputs of the user's, laid out as the
    function takes them. `beat` is called before each call with its sizes, and `lose` with what ended the device for
    this process; `wait` makes the region in which the device is waited for. gradient_refusal: in which words it refuses
    to give gradients here. `otherwise` are subjects of the same function, called by conventions that lay the same
    tensors out in another way.
    """

    name: str
    function: Callable[..., Any]
    convention: Convention
    spec: FunctionSpec
    reference: Callable[..., Any] | None = None
    given: Mapping[str, Tensor] = field(default_factory=dict)
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    profile: Profile = "quick"
    timeout: float | None = None
    lengths: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    place: Place = field(default_factory=Place)
    beat: Callable[[Shape], None] = field(default=lambda shape: None, repr=False)
    lose: Callable[[Exception], None] = field(default=lambda lost: None, repr=False)
    wait: Callable[[str], AbstractContextManager[object]] = field(default=nullcontext, repr=False)
    known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    gradient_refusal: str = ""
    otherwise: tuple["FunctionSubject", ...] = field(default=(), repr=False, compare=False)

    @property
    def has_truth(self) -> bool:
        """Whether anything says what is right: words about which keys are read, or a reference."""
        return self.spec.is_declared or self.reference is not None

    @property
    def has_gradients(self) -> bool:
        """Whether it is made for training, on this device."""
        return not (self.convention.is_forward_only or self.spec.is_forward_only or self.gradient_refusal)
