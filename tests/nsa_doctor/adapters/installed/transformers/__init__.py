"""What the doctor calls of transformers, with small models of its own, one for each fault."""

import os
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__version__ = "0.0.1"
FAULTS = ("", "positions", "padding", "rows", "future", "packing", "sdpa", "recompute", "argmax", "hanging", "dying")


class GenerationConfig:
    """Holds nothing."""


class TinyConfig:
    model_type = "tiny"

    def __init__(
        self,
        vocab_size: int = 5000,
        hidden_size: int = 512,
        num_hidden_layers: int = 9,
        num_attention_heads: int = 8,
        max_position_embeddings: int = 4096,
        attention_dropout: float = 0.1,
        pad_token_id: int = 4000,
        layer_types: list[str] | None = None,
        sliding_window: int = 1024,
        fault: str = "",
    ) -> None:
        named = {name: value for name, value in locals().items() if name != "self"}
        vars(self).update(named)
        self.layer_types = layer_types or (["full", "full", "sliding"] * num_hidden_layers)[:num_hidden_layers]


class FaultyConfig(TinyConfig):
    fault = ""

    def __init__(self, **named: object) -> None:
        super().__init__(**{"fault": type(self).fault} | named)


KINDS = {
    f"tiny_{fault}" if fault else "tiny": type(
        "Config", (FaultyConfig,), {"fault": fault, "model_type": f"tiny_{fault}"}
    )
    for fault in FAULTS
}


class AutoConfig:
    @staticmethod
    def for_model(model_type: str, **values: object) -> TinyConfig:
        return KINDS[model_type](**values)


class AutoModelForCausalLM:
    @staticmethod
    def from_config(config: TinyConfig, attn_implementation: str = "sdpa", **_: str) -> "TinyForCausalLM":
        if config.fault == "dying" and attn_implementation == "eager":
            os._exit(9)
        return TinyForCausalLM(config, attn_implementation)


class TinyLayer(nn.Module):
    def __init__(self, config: TinyConfig, kind: str, implementation: str) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads, self.window = config.num_attention_heads, config.sliding_window if kind == "sliding" else None
        self.fault, self.is_eager = config.fault, implementation == "eager"
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))
        self.calls = 0

    def forward(self, x: Tensor, seen: Tensor, at: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, object]:
        q, k, v = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        if self.window is not None:
            seen = seen & (at[:, None] - torch.arange(k.shape[2])[None] < self.window)
        logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen[:, None], -1e30)
        if self.fault == "sdpa" and not self.is_eager:
            logits = logits * 1.1
        if self.fault == "recompute" and self.training:
            self.calls += 1
            logits = logits * self.calls
        mixed = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return x + self.o_proj(mixed), (k, v)


class TinyForCausalLM(nn.Module):
    supports_gradient_checkpointing = True
    _supports_flash_attn = True

    def __init__(self, config: TinyConfig, implementation: str) -> None:
        super().__init__()
        self.config, self.generation_config, self.is_checkpointing = config, GenerationConfig(), False
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(TinyLayer(config, kind, implementation) for kind in config.layer_types)
        self.norm, self.head = nn.LayerNorm(config.hidden_size), nn.Linear(config.hidden_size, config.vocab_size)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: object = None) -> None:
        self.is_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.is_checkpointing = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: list | None = None,
        use_cache: bool | None = None,
    ) -> SimpleNamespace:
        fault, num_new = self.config.fault, input_ids.shape[1]
        before = past_key_values[0][0].shape[2] if past_key_values else 0
        at = torch.arange(before, before + num_new)
        if position_ids is None:
            position_ids = (at - before if fault == "positions" else at)[None]
        seen = self.seen(at, before + num_new, attention_mask, position_ids, past_key_values)
        x = self.embedding(input_ids) + self.positions(position_ids)
        if fault == "rows":
            x = x + 0.1 * x.mean(0, keepdim=True)
        cache = []
        for layer in self.layers:
            layer.calls = 0
        for index, layer in enumerate(self.layers):
            past = past_key_values[index] if past_key_values else None
            run = (
                (lambda *given, layer=layer: checkpoint(layer, *given, use_reentrant=False))
                if self.is_checkpointing
                else layer
            )
            x, held = run(x, seen, at, past)
            cache.append(held)
        while fault == "hanging" and past_key_values:
            pass
        return SimpleNamespace(logits=self.head(self.norm(x)), past_key_values=cache if use_cache else None)

    def seen(self, at: Tensor, num_keys: int, mask: Tensor | None, positions: Tensor, past: list | None) -> Tensor:
        """Which keys each query may read, [B, Sq, Sk]."""
        fault = self.config.fault
        seen = (torch.arange(num_keys)[None] <= at[:, None] + (1 if fault == "future" else 0))[None]
        if mask is not None and fault != "padding":
            seen = seen & mask[:, None].bool()
        if mask is None and not past and fault != "packing" and positions.shape[1] == num_keys:
            row = (positions.diff(dim=1, prepend=positions[:, :1] - 1) != 1).cumsum(1)
            seen = seen & (row[:, :, None] == row[:, None])
        return seen

    @torch.no_grad()
    def generate(
        self, ids: Tensor, attention_mask: Tensor, max_new_tokens: int, suppress_tokens: list | None = None, **_: object
    ) -> Tensor:
        for _ in range(max_new_tokens):
            positions = (attention_mask.cumsum(-1) - 1).clamp_min(0)
            logits = self(ids, attention_mask=attention_mask, position_ids=positions).logits[:, -1]
            logits[:, suppress_tokens or []] = -1e30
            best = logits.topk(2).indices[:, 1 if self.config.fault == "argmax" else 0]
            ids = torch.cat((ids, best[:, None]), dim=1)
            attention_mask = torch.cat((attention_mask, attention_mask[:, -1:]), dim=1)
        return ids
