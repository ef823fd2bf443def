"""Decoder layers and the stack."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import TundraAttention
from .cache import LayerCache, ModelCache
from .config import TundraConfig
from .flags import switch
from .layout import Compaction, Layout, packed_layout, plain_layout
from .utils import RMSNorm, spans, take_rows


class FeedForward(nn.Module):
    """Gated feed-forward network."""

    def __init__(self, cfg: TundraConfig) -> None:
        """A network of width `cfg.mlp_dim`."""
        super().__init__()
        self.up = nn.Linear(cfg.dim, cfg.mlp_dim, bias=False)
        self.gate = nn.Linear(cfg.dim, cfg.mlp_dim, bias=False)
        self.down = nn.Linear(cfg.mlp_dim, cfg.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] in and out."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """Attention and a feed-forward network, each on a normed residual stream."""

    def __init__(self, cfg: TundraConfig) -> None:
        """One layer."""
        super().__init__()
        self.attention_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.attention = TundraAttention(cfg)
        self.mlp_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.mlp = FeedForward(cfg)
        self.drop = nn.Dropout(cfg.dropout)

    def attend(self, x: Tensor, layout: Layout, cache: LayerCache | None = None) -> Tensor:
        """The first half."""
        return x + self.drop(self.attention(self.attention_norm(x), layout, cache))

    def feed(self, x: Tensor) -> Tensor:
        """The second half."""
        return x + self.drop(self.mlp(self.mlp_norm(x)))


class TundraStack(nn.Module):
    """Decoder layers and a norm behind them; causal, [B, S, D] in and out."""

    def __init__(self, cfg: TundraConfig) -> None:
        """A stack of `cfg.n_layers` layers."""
        super().__init__()
        self.cfg = cfg
        self.layers = nn.ModuleList(DecoderLayer(cfg) for _ in range(cfg.n_layers))
        self.norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self._init_weights()

    def _init_weights(self) -> None:
        """Matrices by their inputs, those that write to the residual stream by depth as well; gates half open."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                depth = 2 * self.cfg.n_layers if name.endswith((".out", ".down")) else 1
                nn.init.normal_(module.weight, std=(module.in_features * depth) ** -0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def _recomputing(self) -> bool:
        """Whether attention is computed again in backward."""
        return self.cfg.recompute and self.training and torch.is_grad_enabled() and switch("TUNDRA_RECOMPUTE")

    def _layers(self, x: Tensor, layout: Layout) -> Tensor:
        """Whole rows through all layers and the norm."""
        for layer in self.layers:
            if self._recomputing():
                x = checkpoint(layer.attend, x, layout, use_reentrant=False)
            else:
                x = layer.attend(x, layout)
            x = layer.feed(x)
        return self.norm(x)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, document_ids: Tensor | None = None) -> Tensor:
        """Outputs of whole rows, [B, S, D].

        Args:
            x: Embeddings, [B, S, D].
            attention_mask: 1 or True at tokens, 0 or False at padding, wherever it is, [B, S]; padding puts out zeros.
            document_ids: Ids of packed documents, [B, S]; tokens see those of their own document alone.
        """
        block = self.cfg.block
        if attention_mask is None:
            if document_ids is None:
                return self._layers(x, plain_layout(x.shape[0], 0, x.shape[1], block, x.device))
            return self._layers(x, packed_layout(document_ids, block))
        compaction = Compaction.of(attention_mask)
        layout = packed_layout(compaction.documents(document_ids), block)
        out = take_rows(self._layers(take_rows(x, compaction.order), layout), compaction.back)
        return out.masked_fill(~compaction.kept.unsqueeze(-1), 0.0)

    def extend(self, x: Tensor, cache: ModelCache) -> Tensor:
        """Outputs of tokens after those in the cache, which keeps them."""
        layout = plain_layout(x.shape[0], cache.length, x.shape[1], self.cfg.block, x.device)
        for layer, kept in zip(self.layers, cache.layers, strict=True):
            x = layer.feed(layer.attend(x, layout, kept))
        return self.norm(x)

    @torch.no_grad()
    def prefill(self, x: Tensor) -> tuple[Tensor, ModelCache]:
        """The outputs of a prompt, taken in pieces, and the cache with which to decode after it."""
        cache = ModelCache.empty(self.cfg, x)
        outputs = [self.extend(x[:, start:end], cache) for start, end in spans(x.shape[1], self.cfg.prefill_chunk)]
        return torch.cat(outputs, dim=1), cache

    @torch.no_grad()
    def step(self, x: Tensor, cache: ModelCache) -> tuple[Tensor, ModelCache]:
        """Next tokens, one or more, [B, S, D]; the cache is changed and given back."""
        return self.extend(x, cache), cache
