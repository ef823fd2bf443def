"""Short causal convolution, one filter per channel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .state import last_rows


class ShortConv(nn.Module):
    """Depthwise convolution over the last few tokens, followed by SiLU."""

    def __init__(self, channels: int, width: int) -> None:
        """A filter of `width` taps for each of `channels` channels."""
        super().__init__()
        self.channels = channels
        self.width = width
        self.weight = nn.Parameter(torch.randn(channels, 1, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, channels] in and out; a token sees itself and the `width - 1` tokens before."""
        length = x.shape[1]
        padded = F.pad(x.transpose(1, 2), (self.width - 1, 0))
        mixed = F.conv1d(padded, self.weight, self.bias, groups=self.channels)[..., :length]
        return F.silu(mixed).transpose(1, 2)

    def prefill(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs, and the inputs that the next tokens need."""
        y = self(x)
        return y, last_rows(x, self.width - 1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One token, [B, 1, channels], after the inputs in `state`."""
        window = torch.cat([state, x], dim=1)
        mixed = torch.einsum("bkc,ck->bc", window, self.weight.squeeze(1)) + self.bias
        return F.silu(mixed).unsqueeze(1), window[:, 1:]
