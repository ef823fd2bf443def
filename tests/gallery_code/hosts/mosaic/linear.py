"""Gated linear attention with a short convolution and decays that depend on the input."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import MosaicConfig
from .conv import ShortConv
from .norms import HeadNorm
from .scan import gated_scan, recurrent_step
from .state import LinearState
from .utils import compute_dtype, merge_heads, split_heads


class LinearMixer(nn.Module):
    """Mixes tokens through a recurrent memory per head.

    A token writes key and value, as strongly as its beta says, into a memory that its decay has made smaller, reads it
    with its query, and gates what it read.
    """

    def __init__(self, cfg: MosaicConfig) -> None:
        """A mixer of `cfg.n_heads` heads."""
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.conv = ShortConv(3 * cfg.dim, cfg.conv_width)
        self.decay = nn.Linear(cfg.dim, cfg.n_heads, bias=False)
        self.decay_bias = nn.Parameter(torch.linspace(-4.5, 4.5, cfg.n_heads))
        self.beta = nn.Linear(cfg.dim, cfg.n_heads)
        self.skip = nn.Parameter(torch.full((cfg.n_heads, 1, 1), 0.5))
        self.norm = HeadNorm(cfg.n_heads, cfg.head_dim, cfg.norm_eps)
        self.gate = nn.Linear(cfg.dim, cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim, bias=False)
        if cfg.zero_out:
            nn.init.zeros_(self.out.weight)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys of length one and values, [B, H, S, d]."""
        q, k, v = (split_heads(part, self.cfg.n_heads) for part in mixed.chunk(3, dim=-1))
        return q, F.normalize(k, dim=-1, eps=1e-6), v

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay (at most zero) and write strength, [B, H, S]."""
        wide = compute_dtype(x)
        log_decay = F.logsigmoid((self.decay(x) + self.decay_bias).to(wide))
        beta = torch.sigmoid(self.beta(x)).clamp(min=self.cfg.beta_floor)
        return log_decay.transpose(1, 2), beta.transpose(1, 2)

    def _finish(self, x: Tensor, read: Tensor, v: Tensor) -> Tensor:
        """What was read, with the value past it, normed, gated and projected."""
        normed = self.norm(read + self.skip * v)
        return self.out(merge_heads(normed) * F.silu(self.gate(x)))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] in and out."""
        return self._whole(x, self.conv(self.qkv(x)))[0]

    def prefill(self, x: Tensor) -> tuple[Tensor, LinearState]:
        """The outputs, and the state after the last token."""
        mixed, conv = self.conv.prefill(self.qkv(x))
        y, memory = self._whole(x, mixed)
        return y, LinearState(conv, memory)

    def _whole(self, x: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self._heads(mixed)
        log_decay, beta = self._gates(x)
        read, memory = gated_scan(
            q, k, v * beta.unsqueeze(-1), log_decay, None, chunk=self.cfg.chunk, configured=self.cfg.scan
        )
        return self._finish(x, read, v), memory

    def step(self, x: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
        """One token, [B, 1, D]."""
        mixed, conv = self.conv.step(self.qkv(x), state.conv)
        q, k, v = self._heads(mixed)
        log_decay, beta = self._gates(x)
        wide = state.memory.dtype
        token = [part.squeeze(2).to(wide) for part in (q, k, v * beta.unsqueeze(-1), log_decay)]
        read, memory = recurrent_step(*token, state.memory, self.cfg.head_dim**-0.5)
        return self._finish(x, read.unsqueeze(2).to(v.dtype), v), LinearState(conv, memory)
