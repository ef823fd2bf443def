"""An attention function: `nsa-doctor run --subject fn:function:attend --like sdpa --spec causal,window=16,builtin`.

`--like` says how it is called (here as torch's scaled_dot_product_attention: q, k and v are [B, H, S, D]), `--spec`
what it is meant to compute, which a float64 oracle is built from; `builtin` says that it has no argument for that. A
kernel for a GPU is examined with `--device cuda --dtype bfloat16`.
"""

import torch

WINDOW = 16


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Each query sees its own key and the 15 before it."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    distance = torch.arange(q.shape[-2], device=q.device)[:, None] - torch.arange(k.shape[-2], device=q.device)
    is_hidden = (distance < 0) | (distance >= WINDOW)
    return scores.masked_fill(is_hidden, -torch.inf).softmax(-1) @ v
