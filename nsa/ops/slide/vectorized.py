"""The sliding branch, fast: any device, float64, float32, bfloat16 and float16, any H/G, Dv != Dk."""

from dataclasses import dataclass

from torch import Tensor

from nsa.ops.banded import banded_attention, banded_gradients
from nsa.ops.geometry import Geometry
from nsa.ops.reads import ReadCounter
from nsa.ops.tiles import tile_budget
from nsa.types import Key, Output, Query, Value


def sliding_attention(
    q: Query,
    k: Key,
    v: Value,
    geometry: Geometry,
    reads: ReadCounter | None = None,
    num_tile_elements: int | None = None,
) -> Output:
    """Attention of each query over the last w keys, its own included (section 3.3.3).

    The T queries are the last T of the S key tokens.
    """
    window = _window(q, k, geometry)
    found = banded_attention(q, k, v, window, counts_reads=reads is not None, num_tile_elements=num_tile_elements)
    if reads is not None:
        reads.sliding = found.num_reads
    return found.out


def forward(
    q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, num_tile_elements: int | None
) -> tuple[Tensor, Tensor]:
    """Output and normaliser [B, T, H, 2]."""
    return banded_attention(q, k, v, _window(q, k, geometry), num_tile_elements=num_tile_elements)[:2]


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    geometry: Geometry,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    budget = tile_budget(q.device, num_tile_elements)
    return banded_gradients(grad, q, k, v, out, norm, _window(q, k, geometry), budget)


def _window(q: Tensor, k: Tensor, geometry: Geometry) -> "_Window":
    return _Window(first_query=k.shape[1] - q.shape[1], w=geometry.w)


@dataclass(frozen=True)
class _Window:
    first_query: int
    w: int

    @property
    def max_queries(self) -> int:
        return max(64, self.w // 8)

    def keys(self, queries: slice) -> slice:
        return slice(max(0, self.first_query + queries.start - self.w + 1), self.first_query + queries.stop)

    def seen_by_all(self, queries: slice) -> slice:
        return slice(max(0, self.first_query + queries.stop - self.w), self.first_query + queries.start + 1)

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        age = self.first_query + query - key
        return (age >= 0) & (age < self.w)
