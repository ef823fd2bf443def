"""A module with a cache of its own, so that decoding is examined too: `nsa-doctor run --subject decode_adapter:make`.

prefill(module, x) takes a prompt and gives (output, state); step(module, x, state) takes one token and gives the same.
What a module calls `prefill` and `step`, or takes back by a usual name (`cache`, `past_key_values`), is found without
an adapter.
"""

import torch
from torch import nn

from nsa_doctor import Adapter

State = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Causal attention whose forward also gives its keys and values."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: torch.Tensor, past: State | None = None) -> tuple[torch.Tensor, State]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
        is_hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(is_hidden, -torch.inf)
        return scores.softmax(-1) @ v, (k, v)


def make() -> Adapter:
    """How the module is called, and how it decodes."""
    return Adapter(
        make=Attention,
        call=lambda module, x: module(x)[0],
        seams={"prefill": lambda module, x: module(x), "step": lambda module, x, state: module(x, state)},
    )
