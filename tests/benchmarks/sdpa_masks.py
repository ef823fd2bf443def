"""Foreign subjects for a GPU: torch's fused attention with an explicit mask, under each backend, to run the doctor on.

nsa-doctor run --device cuda --subject tests.benchmarks.sdpa_masks:efficient_bool
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

DIM, HEADS = 256, 4
WINDOW = 100


class MaskedAttention(nn.Module):
    """[B, S, DIM] -> [B, S, DIM]: a causal sliding window, as a mask of bools or of zeros and -inf."""

    def __init__(self, backend: SDPBackend, has_float_mask: bool) -> None:
        super().__init__()
        self.backend, self.has_float_mask = backend, has_float_mask
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        distance = torch.arange(x.shape[1], device=x.device)[:, None] - torch.arange(x.shape[1], device=x.device)
        mask = (distance >= 0) & (distance < WINDOW)
        if self.has_float_mask:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
        with sdpa_kernel(self.backend):
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


def _make(backend: SDPBackend, has_float_mask: bool, dtype: torch.dtype) -> Callable[[], nn.Module]:
    return lambda: MaskedAttention(backend, has_float_mask).to(dtype)


_full = partial(_make, dtype=torch.float32)
_half = partial(_make, dtype=torch.bfloat16)

math_bool = _full(SDPBackend.MATH, False)
math_float = _full(SDPBackend.MATH, True)
efficient_bool = _full(SDPBackend.EFFICIENT_ATTENTION, False)
efficient_float = _full(SDPBackend.EFFICIENT_ATTENTION, True)
efficient_half_bool = _half(SDPBackend.EFFICIENT_ATTENTION, False)
efficient_half_float = _half(SDPBackend.EFFICIENT_ATTENTION, True)
cudnn_bool = _half(SDPBackend.CUDNN_ATTENTION, False)
cudnn_float = _half(SDPBackend.CUDNN_ATTENTION, True)
flash_bool = _half(SDPBackend.FLASH_ATTENTION, False)
