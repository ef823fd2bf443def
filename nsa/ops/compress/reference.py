"""The compressed branch one equation at a time (arXiv 2502.11089, Eq. 7 and 8): right on the CPU in float64, not fast.

A query is attended over exactly the blocks it sees. No mask is applied, so nothing it does not see can reach it, not
even a NaN, and a query that sees no block sums over nothing: exactly zero, forward and backward.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nsa.ops.geometry import Geometry
from nsa.types import CompressedKey, CompressedValue, Output, Query

Block = Float[Tensor, "*lead l D"]
Summary = Float[Tensor, "*lead D"]
Probabilities = Float[Tensor, "B T H C"]
Phi = Callable[[Tensor], Tensor]


def phi_avg(block: Block) -> Summary:
    """The φ of Eq. 7 as the mean of a block's tokens; half precision is averaged in float32."""
    return _wide(block).mean(-2).to(block.dtype)


def phi_mlp(
    block: Block,
    position: Float[Tensor, "l D"],
    w1: Float[Tensor, "hidden l_D"],
    b1: Float[Tensor, " hidden"],
    w2: Float[Tensor, "D hidden"],
    b2: Float[Tensor, " D"],
) -> Summary:
    """The φ of Eq. 7 as an MLP: block plus learned position, flattened token by token, linear, SiLU, linear."""
    flat = (_wide(block) + _wide(position)).flatten(-2)  # [*lead, l·D]
    hidden = functional.silu(flat @ _wide(w1).T + _wide(b1))
    return (hidden @ _wide(w2).T + _wide(b2)).to(block.dtype)


def phi_conv(block: Block, kernel: Float[Tensor, "D l"], w: Float[Tensor, "D D"], b: Float[Tensor, " D"]) -> Summary:
    """The φ of Eq. 7 as a depthwise convolution of width l, which sees a block once, then a linear map."""
    mixed = (_wide(block) * _wide(kernel).T).sum(-2)  # [*lead, D]
    return (mixed @ _wide(w).T + _wide(b)).to(block.dtype)


def compress(x: Float[Tensor, "B S G D"], phi: Phi, geometry: Geometry) -> Float[Tensor, "B C G D"]:
    """Eq. 7: φ of every complete block, all groups alike; when S < l there is none, and every gradient is zero."""
    count = geometry.num_compressed(x.shape[1])
    ranges = [geometry.compressed_range(block) for block in range(count)]
    blocks = [x[:, start:end].transpose(1, 2) for start, end in ranges]  # each [B, G, l, D]
    none = x[:, :0].unsqueeze(3).expand(-1, -1, -1, geometry.l, -1)  # [B, 0, G, l, D]
    return phi(torch.stack(blocks, dim=1) if blocks else none)


def compressed_attention(
    q: Query, k_cmp: CompressedKey, v_cmp: CompressedValue, geometry: Geometry, first_query: int
) -> tuple[Output, Probabilities]:
    """Eq. 8 and the branch's own term of Eq. 5: every query over the blocks that end at or before its position.

    Query i has position first_query + i. Returns the output, and the probabilities in the dtype they were computed in
    (float32 for half precision), zero for blocks a query does not see.
    """
    num_queries, num_blocks = q.shape[1], k_cmp.shape[1]
    needed = geometry.num_compressed(first_query + num_queries)
    if num_blocks < needed:
        raise ValueError(f"k_cmp must hold the {needed} blocks the last query sees, got {num_blocks}")
    queries = _wide(q).unflatten(2, (k_cmp.shape[2], -1)).unbind(1)  # T of [B, G, h, Dk]
    keys = _wide(k_cmp).transpose(1, 2).contiguous()  # [B, G, C, Dk]
    values = _wide(v_cmp).transpose(1, 2).contiguous()
    outputs, probabilities = [], []
    for index, query in enumerate(queries):
        visible = geometry.num_compressed(first_query + index + 1)
        p_cmp = compression_probabilities(query, keys[:, :, :visible])
        outputs.append(p_cmp @ values[:, :, :visible])
        probabilities.append(functional.pad(p_cmp, (0, num_blocks - visible)))
    out = torch.stack(outputs, dim=1).flatten(2, 3).to(q.dtype)
    return out, torch.stack(probabilities, dim=1).flatten(2, 3)


def compression_probabilities(
    query: Float[Tensor, "B G h Dk"], keys: Float[Tensor, "B G visible Dk"]
) -> Float[Tensor, "B G h visible"]:
    """Eq. 8 for one query: softmax(q·K_cmp / √Dk) over the blocks given, all of them visible."""
    return (query @ keys.mT / math.sqrt(query.shape[-1])).softmax(-1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
