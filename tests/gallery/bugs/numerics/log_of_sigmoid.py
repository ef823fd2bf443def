"""Large inputs make NaN: log(sigmoid(x)) is -inf where the sigmoid is zero, and -inf is taken from -inf."""

import torch
from torch import nn

from tests.gallery.hosts.tiled_block import AttentionBlock, TiledAttention

MODULE = "attention"
CODES = {"NAN101", "NAN102", "NAN103", "NAN104", "NAN105"}


class Forgetting(TiledAttention):
    def __init__(self, dim):
        super().__init__(dim)
        self.forget = nn.Linear(dim, self.heads)

    def forward(self, x):
        B, S, C = x.shape
        q, k, v = (t.view(B, S, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        log_f = torch.log(torch.sigmoid(self.forget(x))).transpose(1, 2)  # here
        kept = log_f.cumsum(-1)
        s = q @ k.mT / self.head_dim**0.5 + (kept[..., :, None] - kept[..., None, :])
        s = s.masked_fill(torch.ones(S, S, dtype=torch.bool, device=x.device).triu(1), torch.finfo(s.dtype).min)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, S, C))


def make():
    return AttentionBlock(attention=Forgetting, norm=nn.Identity)
