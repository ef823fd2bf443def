"""The gate one equation at a time (arXiv 2502.11089, Eq. 5), for tests of `nsa.nn.gate.Gate`."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nsa.types import GateWeights


def gate_weights(
    query_mean: Float[Tensor, "B T G Dk"],
    w1: Float[Tensor, "hidden Dk"],
    b1: Float[Tensor, " hidden"],
    w2: Float[Tensor, "3 hidden"],
    b2: Float[Tensor, "3"],
    kind: Literal["softmax", "sigmoid"],
    temperature: float,
) -> GateWeights:
    """The g of Eq. 5: weights of the compressed, selected and sliding branch, in this order, per token and group.

    query_mean: a group's queries before rotation, averaged over its heads. temperature divides the logits of a softmax
    gate; a sigmoid gate takes none.
    """
    hidden = functional.silu(_wide(query_mean) @ _wide(w1).T + _wide(b1))
    logits = hidden @ _wide(w2).T + _wide(b2)
    if kind == "softmax":
        return (logits / temperature).softmax(-1).to(query_mean.dtype)
    if kind == "sigmoid":
        return logits.sigmoid().to(query_mean.dtype)
    raise ValueError(f"kind must be softmax or sigmoid, got {kind!r}")


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
