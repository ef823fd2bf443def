"""Blocks and the stack."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .cache import LatentCache, ModelCache
from .config import QuarryConfig
from .flags import switch
from .latent import LatentAttention
from .moe import MixtureOfExperts
from .utils import RMSNorm, spans


class Block(nn.Module):
    """Attention and experts, each on a normed residual stream."""

    def __init__(self, cfg: QuarryConfig) -> None:
        """One block."""
        super().__init__()
        self.norm_attention = RMSNorm(cfg.dim, cfg.norm_eps)
        self.attention = LatentAttention(cfg)
        self.norm_experts = RMSNorm(cfg.dim, cfg.norm_eps)
        self.experts = MixtureOfExperts(cfg)

    def attend(self, x: Tensor) -> Tensor:
        """The first half: attention."""
        return x + self.attention(self.norm_attention(x))

    def mix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The second half: experts, and the loss that balances them."""
        mixed, aux, _ = self.experts(self.norm_experts(x))
        return x + mixed, aux

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, S, D] and the loss that balances experts."""
        return self.mix(self.attend(x))

    def extend(self, x: Tensor, cache: LatentCache) -> Tensor:
        """Tokens after those in the cache, which keeps them."""
        start = cache.length
        x = x + self.attention.extend(self.norm_attention(x), cache)
        mixed, _, counts = self.experts(self.norm_experts(x), start, cache.expert_counts)
        cache.expert_counts = counts
        return x + mixed


class QuarryStack(nn.Module):
    """Blocks and a norm behind them; causal, [B, S, D] in and out."""

    def __init__(self, cfg: QuarryConfig) -> None:
        """A stack of `cfg.n_layers` blocks."""
        super().__init__()
        self.cfg = cfg
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.norm = RMSNorm(cfg.dim, cfg.norm_eps)

    def _recomputing(self) -> bool:
        """Whether attention is computed again in backward; experts route, and are not."""
        return self.cfg.recompute and self.training and torch.is_grad_enabled() and switch("QUARRY_RECOMPUTE")

    def forward_with_aux(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and the mean of the blocks' balancing losses."""
        losses = []
        for block in self.blocks:
            if self._recomputing():
                x = checkpoint(block.attend, x, use_reentrant=False)
            else:
                x = block.attend(x)
            x, aux = block.mix(x)
            losses.append(aux)
        return self.norm(x), torch.stack(losses).mean()

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] in and out."""
        return self.forward_with_aux(x)[0]

    def extend(self, x: Tensor, cache: ModelCache) -> Tensor:
        """Outputs of tokens after those in the cache, which keeps them."""
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            x = block.extend(x, layer)
        return self.norm(x)

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, ModelCache]:
        """The outputs of a prompt, taken in pieces, and the cache with which to decode after it."""
        cache = ModelCache.empty(self.cfg, x)
        outputs = [self.extend(x[:, start:end], cache) for start, end in spans(x.shape[1], self.cfg.prefill_chunk)]
        return torch.cat(outputs, dim=1), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: ModelCache) -> tuple[Tensor, ModelCache]:
        """One token, [B, 1, D]; the cache is changed and given back."""
        return self.extend(x, cache), cache
