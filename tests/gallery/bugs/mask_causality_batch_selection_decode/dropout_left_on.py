"""Two runs in eval mode differ: functional dropout is called without `training`; in the feed-forward part."""

import torch.nn.functional as F

from tests.gallery.hosts.gpt import GPT, MLP

MODULE = ("h.0.mlp", "h.1.mlp")
CODES = {"FWD206"}


class Functional(MLP):
    def forward(self, x):
        return self.c_proj(F.dropout(self.act(self.c_fc(x)), p=0.1))  # here


def make():
    return GPT(mlp=Functional)
