"""Gates are all or nothing and cannot learn: logits are divided by a temperature of 1e-7 before the softmax."""

import torch

from tests.gallery.hosts.three_branch import HEADS, BranchGate, SparseLM, subject

MODULE = ("layer.attn.gate", "layer.attn.gate.hidden", "layer.attn.gate.out")
CODES = {"GAT103", "GRD202"}


class Sharp(BranchGate):
    temperature = 1e-7

    def forward(self, x):
        logits = self.out(torch.relu(self.hidden(x))).view(*x.shape[:2], HEADS, 3)
        return torch.softmax(logits / self.temperature, dim=-1)  # here


def make():
    return subject(lambda: SparseLM(gate=Sharp), __name__)
