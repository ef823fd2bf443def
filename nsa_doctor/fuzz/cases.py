"""What is tried: one frozen, bounded record per kind of input, the same in a search, a pipe and a file."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from nsa_doctor.core.measurement import Values
from nsa_doctor.fuzz.plain_rules import LARGEST_SIZE, is_geometry

Layout = Literal["contiguous", "transposed", "sliced", "offset", "expanded"]
LAYOUTS: tuple[Layout, ...] = ("contiguous", "transposed", "sliced", "offset", "expanded")
Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Impl = Literal["reference", "vectorized", "fused", "triton", "flash"]
IMPLS: tuple[Impl, ...] = ("reference", "vectorized", "fused", "triton", "flash")
KERNELS: tuple[Impl, ...] = ("triton", "flash")
Target = Literal["ranges", "masks", "select", "attend", "forward"]
TARGETS: tuple[Target, ...] = ("ranges", "masks", "select", "attend", "forward")
MAGNITUDES = (1.0, 0.0, 1e-3, 10.0, 1e2, 1e-8, 1e4, 1e-30)

_Any = Annotated[int, Field(ge=-(2**62), le=2**62)]
_Small = Annotated[int, Field(ge=1, le=8)]
_Length = Annotated[int, Field(ge=1, le=4096)]
_Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
_Magnitude = Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)]
_Score = float | Literal["nan", "inf", "-inf"]  # strict JSON has no word for these
_Slots = Annotated[list[_Any], Field(max_length=64)]


class CaseError(ValueError):
    """A case that cannot be; one sentence says what is wrong with it."""


class _Case(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Sizes(_Case):
    """A geometry that the equations define."""

    l: int = Field(ge=1, le=LARGEST_SIZE)  # noqa: E741 (the paper's letter)
    d: int = Field(ge=1, le=LARGEST_SIZE)
    l_sel: int = Field(ge=1, le=LARGEST_SIZE)
    n_sel: int = Field(ge=3, le=64)
    w: int = Field(ge=1, le=LARGEST_SIZE)

    @model_validator(mode="after")
    def _check(self) -> "Sizes":
        if not is_geometry(self.l, self.d, self.l_sel, self.n_sel, self.w):
            raise ValueError("must have l and l_sel as multiples of d, and l at most l_sel")
        return self


class Grid(_Case):
    """Any five numbers as a geometry, and where it is asked about."""

    kind: Literal["grid"]
    sizes: list[Annotated[int, Field(ge=-LARGEST_SIZE, le=LARGEST_SIZE)]] = Field(min_length=5, max_length=5)
    num_tokens: int = Field(ge=1, le=512)
    query: int = Field(ge=0, le=511)
    slots: _Slots


class SlotRows(_Case):
    """Slots [rows, n] over `num_tokens` tokens in blocks of `l_sel`."""

    kind: Literal["slots"]
    l_sel: int = Field(ge=1, le=64)
    num_tokens: int = Field(ge=1, le=512)
    rows: list[_Slots] = Field(min_length=1, max_length=16)
    dtype: Literal["int64", "int32"]
    layout: Layout


class RangeRows(_Case):
    """Ranges [rows, m, 2] over `num_tokens` tokens, to become slots of blocks of `l_sel`."""

    kind: Literal["ranges"]
    l_sel: int = Field(ge=1, le=64)
    num_tokens: int = Field(ge=1, le=512)
    num_slots: int = Field(ge=0, le=16)
    rows: list[list[Annotated[list[_Any], Field(min_length=2, max_length=2)]]] = Field(min_length=1, max_length=16)
    dtype: Literal["int64", "int32"]
    layout: Layout


class MaskRows(_Case):
    """Masks [rows, num_tokens], to become ranges and slots."""

    kind: Literal["mask"]
    l_sel: int = Field(ge=1, le=64)
    num_slots: int = Field(ge=0, le=16)
    num_ranges: int = Field(ge=0, le=16)
    rows: list[Annotated[list[bool], Field(min_length=1, max_length=512)]] = Field(min_length=1, max_length=16)
    layout: Layout


class Reads(_Case):
    """Which keys `num_queries` queries read, or those of all sequences packed in one row; `probed` is looked at."""

    kind: Literal["reads"]
    sizes: Sizes
    lengths: list[Annotated[int, Field(ge=0, le=512)]] = Field(min_length=1, max_length=8)
    num_queries: _Length
    rows: _Small
    groups: _Small
    heads: _Small
    probed: int = Field(ge=0, le=4095)
    impl: Impl
    dtype: Dtype = "float64"
    tile_budget: int | None = Field(ge=1, le=2**26)
    seed: _Seed


class Choice(_Case):
    """Importance [B, T, G, J] of queries `first_query` on."""

    kind: Literal["choice"]
    l_sel: int = Field(ge=1, le=4096)
    n_sel: int = Field(ge=1, le=64)
    first_query: int = Field(ge=0, le=4096)
    importance: list[list[list[list[_Score]]]] = Field(min_length=1, max_length=8)
    dtype: Dtype
    layout: Layout
    impl: Impl | Literal["subject"]


class Attention(_Case):
    """One call of the operators against dense attention under a mask."""

    kind: Literal["attention"]
    sizes: Sizes
    num_tokens: int = Field(ge=1, le=512)
    num_queries: int = Field(ge=1, le=512)
    rows: _Small
    groups: _Small
    heads: _Small
    d_k: int = Field(ge=1, le=128)
    d_v: int = Field(ge=1, le=128)
    dtype: Dtype
    layout: Layout
    magnitudes: list[_Magnitude] = Field(min_length=3, max_length=3)
    is_window_trimmed: bool
    tile_budget: int | None = Field(ge=1, le=2**26)
    impl: Impl | Literal["subject"]
    seed: _Seed


class Layer(_Case):
    """A layer of `nsa` small enough to build for one example."""

    sizes: Sizes
    groups: _Small
    heads: _Small
    d_k: int = Field(ge=2, le=64, multiple_of=2)
    d_v: int = Field(ge=1, le=64)
    phi: Literal["avg", "mlp", "conv"]
    gate: Literal["softmax", "sigmoid"]
    shared_kv: bool


class Pass(_Case):
    """One input of a whole subject; what comes from token `cut` on is changed and cut away."""

    kind: Literal["pass"]
    layer: Layer | None
    length: _Length
    cut: int = Field(ge=0, le=4096)
    rows: _Small
    dtype: Literal["wide", "own"]
    layout: Layout
    values: Values
    magnitude: _Magnitude
    has_backward: bool
    seed: _Seed


Case = Grid | SlotRows | RangeRows | MaskRows | Reads | Choice | Attention | Pass
KINDS: dict[Target, tuple[str, ...]] = {
    "ranges": ("slots", "ranges", "mask", "grid"),
    "masks": ("reads",),
    "select": ("choice",),
    "attend": ("attention",),
    "forward": ("pass",),
}
_ADAPTER: TypeAdapter[Case] = TypeAdapter(Annotated[Case, Field(discriminator="kind")])
_WIDEST = 1 << 16
_LINE_WIDTH = 68


def read_case(text: str) -> Case:
    """The case in a JSON text; raises CaseError with one sentence."""
    try:
        case = _ADAPTER.validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])[:200]
        raise CaseError(f"{where or 'the case'}: {problem['msg']}") from None
    except RecursionError:
        raise CaseError("the case: nested too deeply") from None
    _check_shape(case)
    return case


def case_lines(case: Case) -> list[str]:
    """The case in a few lines a person can read."""
    lines: list[str] = []
    for name, text in _fields(case):
        field = f"{name} {text}"
        if lines and len(lines[-1]) + len(field) + 2 <= _LINE_WIDTH:
            lines[-1] += f", {field}"
        else:
            lines.append(field)
    return lines


def _fields(case: BaseModel) -> Iterator[tuple[str, str]]:
    for name, value in case:
        if name == "kind" or value is None:
            continue
        if isinstance(value, Layer):
            yield from _fields(value)
        elif isinstance(value, BaseModel):
            yield name, f"({' '.join(f'{part}={text}' for part, text in _fields(value))})"
        else:
            yield name, str(value).replace("'", "")


def _check_shape(case: Case) -> None:
    """Refuse what is no tensor, and what is too large to be a least input."""
    match case:
        case SlotRows() | RangeRows() | MaskRows():
            _check_rectangular("rows", case.rows)
        case Choice():
            _check_rectangular("importance", case.importance)
        case Reads():
            if not sum(case.lengths):
                raise CaseError("lengths: must hold a token")
        case Attention():
            if case.num_queries > case.num_tokens:
                raise CaseError("num_queries: must be at most num_tokens")
        case _:
            pass


def _check_rectangular(name: str, values: Any) -> None:
    size, level = 1, [values]
    while level and all(isinstance(item, list) for item in level):
        widths = {len(item) for item in level}
        if len(widths) > 1:
            raise CaseError(f"{name}: rows must be of one length")
        size *= widths.pop()
        if size > _WIDEST:
            raise CaseError(f"{name}: must hold at most {_WIDEST} values")
        level = [part for item in level for part in item]
