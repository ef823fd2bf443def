"""Equal values in memory of another layout."""

import torch
from torch import Tensor

PLAIN_LAYOUTS = ("view", "offset")  # contiguous, as rows of a larger batch are: nothing speaks for refusing them
LAYOUTS = (*PLAIN_LAYOUTS, "transposed", "strided", "expanded")  # the last needs rows that are equal


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The values of x [B, S, ...] in another layout, differentiable; `expanded` are those of the first row for all."""
    match layout:
        case "view":
            return x.view(x.shape)
        case "transposed":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        case "strided":
            return torch.stack((x, torch.zeros_like(x)), dim=-1)[..., 0]
        case "offset":
            return torch.cat((x[:1], x))[1:]
        case "expanded":
            return x[:1].clone().expand_as(x)
    raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
