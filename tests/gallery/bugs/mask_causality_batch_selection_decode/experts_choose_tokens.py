"""Experts choose their favourite tokens of the whole sequence, so later tokens take the place of earlier ones."""

import torch
from torch import nn

from tests.gallery.hosts.gpt import GPT, N_EMBD

MODULE = ("h.0.mlp", "h.1.mlp")
CODES = {"FWD201", "FWD202"}


class ExpertChoice(nn.Module):
    def __init__(self, experts=3):
        super().__init__()
        self.router = nn.Linear(N_EMBD, experts, bias=False)
        self.up = nn.Parameter(0.2 * torch.randn(experts, N_EMBD, 2 * N_EMBD))
        self.down = nn.Parameter(0.2 * torch.randn(experts, 2 * N_EMBD, N_EMBD))

    def forward(self, x):
        affinity = self.router(x).softmax(-1).transpose(1, 2)  # B, E, T
        capacity = max(1, x.shape[1] // 2)
        weight, token = affinity.topk(capacity, dim=-1)  # here
        index = token.unsqueeze(-1).expand(-1, -1, -1, N_EMBD)
        taken = x.unsqueeze(1).expand(-1, len(self.up), -1, -1).gather(2, index)
        made = torch.einsum("becd,edf->becf", taken, self.up).relu()
        made = torch.einsum("becf,efd->becd", made, self.down) * weight.unsqueeze(-1)
        return torch.zeros_like(x).scatter_add(1, index.flatten(1, 2), made.flatten(1, 2))


def make():
    return GPT(mlp=ExpertChoice)
