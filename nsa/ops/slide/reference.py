"""The sliding branch one equation at a time (arXiv 2502.11089, section 3.3.3): right on the CPU in float64, not fast.

A query is attended over exactly the tokens in its window. No mask is applied, so nothing else can reach it, not even
a NaN.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from nsa.ops.geometry import Geometry
from nsa.types import Key, Output, Query, Value


def sliding_attention(q: Query, k: Key, v: Value, geometry: Geometry) -> Output:
    """The sliding branch's term of Eq. 5: the query of position t over tokens t−w+1 … t, as many of them as there are.

    The T queries are the last of the S tokens.
    """
    first_query = k.shape[1] - q.shape[1]
    queries = _wide(q).unflatten(2, (k.shape[2], -1)).unbind(1)  # T of [B, G, h, Dk]
    keys = _wide(k).transpose(1, 2).contiguous()  # [B, G, S, Dk]
    values = _wide(v).transpose(1, 2).contiguous()
    outputs = []
    for index, query in enumerate(queries):
        start, end = geometry.window_range(first_query + index)
        outputs.append(_attend(query, keys[:, :, start:end], values[:, :, start:end]))
    return torch.stack(outputs, dim=1).flatten(2, 3).to(q.dtype)


def _attend(
    query: Float[Tensor, "B G h Dk"], keys: Float[Tensor, "B G K Dk"], values: Float[Tensor, "B G K Dv"]
) -> Float[Tensor, "B G h Dv"]:
    """Eq. 2 for one query: softmax(q·K / √Dk)·V over the keys given."""
    return (query @ keys.mT / math.sqrt(query.shape[-1])).softmax(-1) @ values


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
