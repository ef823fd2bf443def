"""The compressed branch, fast: any device, float64, float32, bfloat16 and float16, any H/G, Dv != Dk."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import conv1d, linear, silu

from nsa.ops.banded import Choose, banded_attention, banded_gradients
from nsa.ops.geometry import Geometry
from nsa.ops.reads import ReadCounter
from nsa.ops.tiles import accumulation_dtype, tile_budget
from nsa.types import CompressedKey, CompressedValue, Output, Query, Slots


def compress_avg(x: Tensor, geometry: Geometry) -> Tensor:
    """Mean of each block (Eq. 7): [B, S, G, D] -> [B, C, G, D]. Each token is read once, not l/d times."""
    num_compressed, per_block = geometry.num_compressed(x.shape[1]), geometry.l // geometry.d
    if num_compressed == 0:
        return x[:, :0]
    sums = x.unfold(1, geometry.d, geometry.d).sum(-1, dtype=accumulation_dtype(x.dtype))  # of each stride
    total = sums[:, :num_compressed]
    for offset in range(1, per_block):
        total = total + sums[:, offset : offset + num_compressed]
    return (total / geometry.l).to(x.dtype)


def compress_mlp(
    x: Tensor, geometry: Geometry, position: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> Tensor:
    """flatten(block + position) -> linear -> SiLU -> linear (Eq. 7): [B, S, G, D] -> [B, C, G, D].

    position [l, D], w1 [hidden, l·D], b1 [hidden], w2 [D, hidden], b2 [D].
    """
    blocks = _blocks(x, geometry) + position  # [B, C, G, l, D]
    return linear(silu(linear(blocks.flatten(-2), w1, b1)), w2, b2)


def compress_conv(x: Tensor, geometry: Geometry, kernel: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Depthwise convolution of width l and stride d, then linear (Eq. 7): [B, S, G, D] -> [B, C, G, D].

    kernel [D, l], w [D, D], b [D].
    """
    if geometry.num_compressed(x.shape[1]) == 0:
        return linear(_blocks(x, geometry).sum(-2), w, b)
    channels = x.transpose(1, 2).flatten(0, 1).mT  # [B·G, D, S]
    mixed = conv1d(channels, kernel[:, None], stride=geometry.d, groups=x.shape[-1]).mT
    return linear(mixed.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2), w, b)


def compressed_attention(
    q: Query,
    k_cmp: CompressedKey,
    v_cmp: CompressedValue,
    geometry: Geometry,
    first_query: int,
    choose: Choose | None = None,
    reads: ReadCounter | None = None,
    num_tile_elements: int | None = None,
) -> tuple[Output, Slots | None]:
    """Attention of query t = first_query + i over the compressed blocks that end at or before t.

    And the slots chosen by the probabilities, which exist one tile at a time; None without `choose`.
    """
    band = _Staircase(first_query, geometry)
    out, _, slots, num_reads = banded_attention(q, k_cmp, v_cmp, band, choose, reads is not None, num_tile_elements)
    if reads is not None:
        reads.compressed = num_reads
    return out, slots


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    geometry: Geometry,
    first_query: int,
    choose: Choose | None,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, normaliser [B, T, H, 2] and slots."""
    band = _Staircase(first_query, geometry)
    return banded_attention(q, k, v, band, choose, num_tile_elements=num_tile_elements)[:3]


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    geometry: Geometry,
    first_query: int,
    num_tile_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    band = _Staircase(first_query, geometry)
    return banded_gradients(grad, q, k, v, out, norm, band, tile_budget(q.device, num_tile_elements))


def _blocks(x: Tensor, geometry: Geometry) -> Tensor:
    """[B, S, G, D] -> the complete blocks [B, C, G, l, D], a view where there are any."""
    if geometry.num_compressed(x.shape[1]) == 0:
        return x.new_zeros(x.shape[0], 0, x.shape[2], geometry.l, x.shape[3])
    return x.unfold(1, geometry.l, geometry.d).mT


@dataclass(frozen=True)
class _Staircase:
    first_query: int
    geometry: Geometry

    @property
    def max_queries(self) -> int:
        return 256

    def keys(self, queries: slice) -> slice:
        return slice(0, self.geometry.num_compressed(self.first_query + queries.stop))

    def seen_by_all(self, queries: slice) -> slice:
        return slice(0, self.geometry.num_compressed(self.first_query + queries.start + 1))

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return key * self.geometry.d + self.geometry.l - 1 <= self.first_query + query
