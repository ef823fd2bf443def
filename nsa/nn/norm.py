"""Root-mean-square normalisation (arXiv 1910.07467)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last dimension; the weight starts at one.

    Computed in float32 for half precision and in the input's own dtype otherwise; the result has the input's dtype.
    """

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"
