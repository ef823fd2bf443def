"""The compressor: one learned token for every block of l tokens (arXiv 2502.11089, Eq. 7)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nsa.backends import Impl
from nsa.nn.linear import INITIAL_STD
from nsa.ops.api import compress_tokens
from nsa.ops.geometry import Geometry
from nsa.types import CuSeqlens

_PARAMETERS = {"avg": (), "mlp": ("position", "w1", "b1", "w2", "b2"), "conv": ("kernel", "w", "b")}


class Compressor(nn.Module):
    """phi of Eq. 7 for heads of `head_size` channels; all groups share its weights, keys and values do not.

    bias: whether phi ends in one. Keys need none: it would shift all scores of a query alike, which softmax undoes.
    `avg` has no weights. `mlp`: position [l, D] starts at N(0, 0.02²), w1 [D, l·D] and w2 [D, D] at N(0, 1/fan-in), the
    biases at zero. `conv`: kernel [D, l] starts as the mean of a block and w [D, D] as the identity, both plus
    N(0, 0.02²) noise, the kernel's divided by l.
    """

    def __init__(
        self, phi: Literal["avg", "mlp", "conv"], geometry: Geometry, head_size: int, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.phi, self.geometry = phi, geometry
        length = geometry.l
        if phi == "mlp":
            self.position = _normal(length, head_size)
            self.w1 = _normal(head_size, length * head_size, std=(length * head_size) ** -0.5)
            self.b1 = nn.Parameter(torch.zeros(head_size))
            self.w2 = _normal(head_size, head_size, std=head_size**-0.5)
            self.b2 = nn.Parameter(torch.zeros(head_size)) if bias else None
        if phi == "conv":
            self.kernel = nn.Parameter((1 + _normal(head_size, length).detach()) / length)
            self.w = nn.Parameter(torch.eye(head_size) + _normal(head_size, head_size).detach())
            self.b = nn.Parameter(torch.zeros(head_size)) if bias else None

    def forward(
        self, x: Float[Tensor, "B S G D"], cu_seqlens: CuSeqlens | None = None, impl: Impl = "auto"
    ) -> Float[Tensor, "B C G D"]:
        weights = tuple(self._weight(name) for name in _PARAMETERS[self.phi])
        return compress_tokens(x, self.geometry, self.phi, weights, cu_seqlens=cu_seqlens, impl=impl)

    def _weight(self, name: str) -> Tensor:
        weight: Tensor | None = getattr(self, name)
        return torch.zeros_like(self.w[0] if self.phi == "conv" else self.w2[0]) if weight is None else weight

    def extra_repr(self) -> str:
        return f"phi={self.phi}, l={self.geometry.l}, d={self.geometry.d}"


def _normal(*shape: int, std: float = INITIAL_STD) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=std))
