"""The decoder, embeddings in and out, and the language model around it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import env
from .attention import Context, NSAAttention, make_context
from .cache import CobaltCache, LayerCache
from .compress import Compressor
from .config import CobaltConfig
from .layers import RMSNorm, SwiGLU
from .packing import plan_rows


class Block(nn.Module):
    def __init__(self, cfg: CobaltConfig):
        super().__init__()
        self.attn_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.attn = NSAAttention(cfg)
        self.mlp_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.mlp = SwiGLU(cfg.dim, cfg.mlp_hidden)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor, ctx: Context, cache: LayerCache | None = None) -> Tensor:
        x = x + self.drop(self.attn(self.attn_norm(x), ctx, cache))
        return x + self.drop(self.mlp(self.mlp_norm(x)))


def init_weights(module: nn.Module, cfg: CobaltConfig) -> None:
    """Normal weights, zero biases; what adds to the residual stream is smaller the more layers there are."""
    for name, child in module.named_modules():
        if isinstance(child, nn.Linear):
            residual = name.endswith(("out_proj", "mlp.down"))
            nn.init.normal_(child.weight, std=cfg.std / (2 * cfg.layers) ** 0.5 if residual else cfg.std)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        elif isinstance(child, nn.Embedding):
            nn.init.normal_(child.weight, std=cfg.std)
        elif isinstance(child, Compressor):
            child.reset_parameters(cfg.std)


class CobaltDecoder(nn.Module):
    """Blocks and a norm over embeddings [B, S, dim]."""

    def __init__(self, cfg: CobaltConfig):
        super().__init__()
        self.cfg = cfg
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = RMSNorm(cfg.dim, cfg.norm_eps)
        init_weights(self, cfg)

    def new_cache(self) -> CobaltCache:
        return CobaltCache(self.cfg)

    def _run(self, x: Tensor, cache: CobaltCache | None = None) -> Tensor:
        ctx = make_context(self.cfg, 0 if cache is None else cache.length, x)
        recompute = self.training and torch.is_grad_enabled() and env.checkpointing(self.cfg.checkpoint)
        for i, block in enumerate(self.blocks):
            if cache is not None:
                x = block(x, ctx, cache.layers[i])
            elif recompute:
                x = checkpoint(block, x, ctx, use_reentrant=False)
            else:
                x = block(x, ctx)
        return self.norm(x)

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Args:
        attention_mask: [B, S], zero or False where there is padding, on either side; its outputs are zero.
        document_ids: [B, S]; a token sees those of its own document.
        cu_seqlens: the same by offsets into the flattened batch.
        """
        if attention_mask is None and document_ids is None and cu_seqlens is None:
            return self._run(x)
        plan = plan_rows(x.shape[:2], attention_mask, document_ids, cu_seqlens, x.device)
        if not plan.width:
            return torch.zeros_like(x)
        return plan.unpack(self._run(plan.pack(x)), x.shape[:2])

    @torch.no_grad()
    def prefill(self, x: Tensor, cache: CobaltCache | None = None) -> tuple[Tensor, CobaltCache]:
        """Outputs for a prompt, or what comes after a cache, in chunks or token by token."""
        cache = self.new_cache() if cache is None else cache
        size = 1 if env.prefill_mode() == "sequential" else self.cfg.prefill_chunk
        return torch.cat([self._run(part, cache) for part in x.split(size, dim=1)], dim=1), cache

    @torch.no_grad()
    def decode_step(self, x: Tensor, cache: CobaltCache) -> tuple[Tensor, CobaltCache]:
        """Outputs for one or a few tokens [B, 1, dim]; the cache is changed in place."""
        return self._run(x, cache), cache


@dataclass
class LMOutput:
    logits: Tensor
    loss: Tensor | None = None


class CobaltLM(nn.Module):
    """A language model with tied embeddings: token ids [B, S] in, logits [B, S, vocab] out."""

    def __init__(self, cfg: CobaltConfig, ignore_index: int = -100):
        super().__init__()
        self.cfg = cfg
        self.ignore_index = ignore_index
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.drop = nn.Dropout(cfg.dropout)
        self.decoder = CobaltDecoder(cfg)
        init_weights(self, cfg)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.drop(self.embed(ids) * self.cfg.dim**0.5)

    def _head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.weight)

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> LMOutput:
        """`labels` are the ids themselves, shifted here; no token is asked for the next document's first one."""
        logits = self._head(self.decoder(self._embed(ids), attention_mask, document_ids, cu_seqlens))
        if labels is None:
            return LMOutput(logits)
        wanted = self.targets(labels, attention_mask, document_ids, cu_seqlens)
        return LMOutput(logits, self.loss(logits[:, :-1], wanted))

    def targets(
        self,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """What the first S - 1 tokens are to predict: [B, S - 1]."""
        wanted = labels[:, 1:]
        if attention_mask is not None:
            seen = attention_mask.bool()
            wanted = wanted.masked_fill(~(seen[:, 1:] & seen[:, :-1]), self.ignore_index)
        if document_ids is not None:
            wanted = wanted.masked_fill(document_ids[:, 1:] != document_ids[:, :-1], self.ignore_index)
        if cu_seqlens is not None:
            place = torch.arange(labels.numel(), device=labels.device).view_as(labels)
            begins = torch.isin(place, cu_seqlens.to(place))
            wanted = wanted.masked_fill(begins[:, 1:], self.ignore_index)
        return wanted

    def loss(self, logits: Tensor, wanted: Tensor, reduction: str = "mean") -> Tensor:
        """Cross entropy, at least in float32; zero where nothing is wanted."""
        logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
        total = F.cross_entropy(logits, wanted.flatten(), ignore_index=self.ignore_index, reduction="sum")
        if reduction == "sum":
            return total
        return total / (wanted != self.ignore_index).sum().clamp(min=1)

    def prefill(self, ids: Tensor, cache: CobaltCache | None = None) -> tuple[Tensor, CobaltCache]:
        with torch.no_grad():
            hidden, cache = self.decoder.prefill(self._embed(ids), cache)
            return self._head(hidden), cache

    def decode_step(self, ids: Tensor, cache: CobaltCache) -> tuple[Tensor, CobaltCache]:
        with torch.no_grad():
            hidden, cache = self.decoder.decode_step(self._embed(ids), cache)
            return self._head(hidden), cache
