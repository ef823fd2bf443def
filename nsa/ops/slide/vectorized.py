"""The sliding branch, fast: any device, float64, float32, bfloat16 and float16, any H/G, Dv != Dk."""

from dataclasses import dataclass

from torch import Tensor

from nsa.ops.banded import banded_attention
from nsa.ops.geometry import Geometry
from nsa.ops.reads import ReadCounter
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
    window = _Window(first_query=k.shape[1] - q.shape[1], w=geometry.w)
    banded = banded_attention(q, k, v, window, counts_reads=reads is not None, num_tile_elements=num_tile_elements)
    if reads is not None:
        reads.sliding = banded.num_reads
    return banded.out


@dataclass(frozen=True)
class _Window:
    first_query: int
    w: int

    @property
    def max_queries(self) -> int:
        return max(64, self.w // 4)

    def keys(self, queries: slice) -> slice:
        return slice(max(0, self.first_query + queries.start - self.w + 1), self.first_query + queries.stop)

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        age = self.first_query + query - key
        return (age >= 0) & (age < self.w)
