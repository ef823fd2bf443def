"""Blocks and the stack."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import MosaicConfig
from .linear import LinearMixer
from .local import LocalMixer
from .norms import RMSNorm
from .state import MixerState, ModelState
from .utils import previous_token


class FeedForward(nn.Module):
    """Gated feed-forward network."""

    def __init__(self, cfg: MosaicConfig) -> None:
        """A network of width `cfg.ffn_dim`."""
        super().__init__()
        self.up = nn.Linear(cfg.dim, cfg.ffn_dim, bias=False)
        self.gate = nn.Linear(cfg.dim, cfg.ffn_dim, bias=False)
        self.down = nn.Linear(cfg.ffn_dim, cfg.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] in and out."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A mixer and a feed-forward network, each on a normed residual stream."""

    def __init__(self, cfg: MosaicConfig, layer: int, ffn: FeedForward | None = None) -> None:
        """The block of a layer; `ffn` is given when it is shared."""
        super().__init__()
        self.kind = cfg.mixer_of(layer)
        self.norm_mixer = RMSNorm(cfg.dim, cfg.norm_eps)
        self.mixer: LinearMixer | LocalMixer = LinearMixer(cfg) if self.kind == "linear" else LocalMixer(cfg)
        self.norm_ffn = RMSNorm(cfg.dim, cfg.norm_eps)
        self.ffn = FeedForward(cfg) if ffn is None else ffn
        self.dropout = nn.Dropout(cfg.dropout)

    def _rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(mixed)
        return x + self.ffn(self.norm_ffn(x))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] in and out."""
        return self._rest(x, self.mixer(self.norm_mixer(x)))

    def prefill(self, x: Tensor) -> tuple[Tensor, MixerState]:
        """The outputs, and the mixer's state after the last token."""
        mixed, state = self.mixer.prefill(self.norm_mixer(x))
        return self._rest(x, mixed), state

    def step(self, x: Tensor, state: MixerState) -> tuple[Tensor, MixerState]:
        """One token, [B, 1, D]."""
        mixed, state = self.mixer.step(self.norm_mixer(x), state)
        return self._rest(x, mixed), state


class MosaicStack(nn.Module):
    """Blocks after a token shift, and a norm behind them; causal, [B, S, D] in and out."""

    def __init__(self, cfg: MosaicConfig) -> None:
        """A stack of `cfg.n_layers` blocks."""
        super().__init__()
        self.cfg = cfg
        self.shift = nn.Parameter(torch.full((cfg.dim,), 0.25))
        shared = FeedForward(cfg) if cfg.tie_ffn else None
        self.blocks = nn.ModuleList(Block(cfg, layer, shared) for layer in range(cfg.n_layers))
        self.norm = RMSNorm(cfg.dim, cfg.norm_eps)

    def _shifted(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """Every token mixed with the one before it, channel by channel."""
        return x + self.shift * (previous_token(x, before) - x)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] in and out."""
        h = self._shifted(x)
        for block in self.blocks:
            h = block(h)
        return self.norm(h)

    def prefill(self, x: Tensor) -> tuple[Tensor, ModelState]:
        """The outputs of a prompt, and the state with which to decode after it."""
        h = self._shifted(x)
        states = []
        for block in self.blocks:
            h, state = block.prefill(h)
            states.append(state)
        return self.norm(h), ModelState(x[:, -1:], tuple(states))

    def step(self, x: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """One token, [B, 1, D], after those that made `state`; the given state stays as it is."""
        h = self._shifted(x, state.last)
        states = []
        for block, before in zip(self.blocks, state.layers, strict=True):
            h, after = block.step(h, before)
            states.append(after)
        return self.norm(h), ModelState(x, tuple(states))

    def extend(self, x: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Several tokens after those that made `state`, one by one."""
        outputs = []
        for token in x.split(1, dim=1):
            y, state = self.step(token, state)
            outputs.append(y)
        return torch.cat(outputs, dim=1), state
