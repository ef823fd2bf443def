"""The gate: how much of each branch a token takes (arXiv 2502.11089, Eq. 5)."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from nsa.nn.linear import linear
from nsa.types import GateWeights

Branch = Literal["all", "cmp", "sel", "win"]


class Gate(nn.Module):
    """Weights of the compressed, selected and sliding branch from a group's mean query; all groups share it.

    fc1 -> SiLU -> fc2 -> softmax(logits / temperature) or sigmoid. fc2 starts at N(0, 0.02²) with zero bias: close to
    equal weights, yet different for every input, so that the gate learns from the first step. With one `branch` alone
    its weight is 1, the others' 0, whatever the input; the parameters stay, and learn nothing.
    """

    def __init__(
        self, head_size: int, kind: Literal["softmax", "sigmoid"], temperature: float = 1.0, branch: Branch = "all"
    ) -> None:
        super().__init__()
        self.kind, self.temperature = kind, temperature
        self.alone = None if branch == "all" else get_args(Branch).index(branch) - 1
        self.fc1 = linear(head_size, head_size, bias=True, std=head_size**-0.5)
        self.fc2 = linear(head_size, 3, bias=True)

    def forward(self, query_mean: Float[Tensor, "B T G Dk"]) -> GateWeights:
        if self.alone is not None:
            one_hot = torch.arange(3, device=query_mean.device) == self.alone
            return one_hot.to(query_mean.dtype).expand(*query_mean.shape[:3], 3)
        logits = self.fc2(silu(self.fc1(query_mean)))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = logits.sigmoid() if self.kind == "sigmoid" else (logits / self.temperature).softmax(-1)
        out: Tensor = weights.to(query_mean.dtype)
        return out

    def extra_repr(self) -> str:
        kind = self.kind if self.kind == "sigmoid" else f"softmax, temperature={self.temperature}"
        return kind if self.alone is None else f"{get_args(Branch)[self.alone + 1]} alone"
