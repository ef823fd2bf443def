"""Hidden states to queries, and to the keys and values of every branch, in one matrix product."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from nsa.autocast import without_autocast
from nsa.config import NSAConfig
from nsa.nn.linear import INITIAL_STD
from nsa.types import Hidden, Query

_BRANCHES = ("cmp", "sel", "win")


class Projected(NamedTuple):
    """Queries, and the keys and values of the branches one after the other: N = 3·G, or G when they are shared."""

    q: Query
    keys: Float[Tensor, "B T N Dk"]
    values: Float[Tensor, "B T N Dv"]


class Projection(nn.Module):
    """Queries once, keys and values for each branch (section 3.3.3), or one pair for all with `shared_kv`.

    The weights q, k_cmp, k_sel, k_win, v_cmp, v_sel, v_win (or q, k, v) are [out, dim], without bias, each a parameter
    of its own: a branch that never learns shows. All start at N(0, 0.02²).
    """

    def __init__(self, config: NSAConfig) -> None:
        super().__init__()
        self.config = config
        branches = ("",) if config.shared_kv else tuple(f"_{branch}" for branch in _BRANCHES)
        num_outputs = {"q": config.n_heads * config.d_k}
        num_outputs |= {f"k{branch}": config.n_kv_groups * config.d_k for branch in branches}
        num_outputs |= {f"v{branch}": config.n_kv_groups * config.d_v for branch in branches}
        self.names = tuple(num_outputs)
        for name, outputs in num_outputs.items():
            weight = nn.init.normal_(torch.empty(outputs, config.dim), std=INITIAL_STD)
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, x: Hidden) -> Projected:
        weights = self.weights()
        if x.shape[0] * x.shape[1] < self.config.dim // 4:  # few rows: copying outputs costs less than copying weights
            joined = torch.cat([linear(x, weight) for weight in weights], dim=-1)
        else:
            joined = linear(x, _joined(*weights))
        num_values = (len(weights) - 1) // 2 * self.config.n_kv_groups
        sizes = (self.config.n_heads * self.config.d_k, num_values * self.config.d_k, num_values * self.config.d_v)
        q, keys, values = joined.split(sizes, dim=-1)
        return Projected(
            q.unflatten(-1, (-1, self.config.d_k)),
            keys.unflatten(-1, (-1, self.config.d_k)),
            values.unflatten(-1, (-1, self.config.d_v)),
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        weight: Tensor = getattr(self, self.names[0])
        return weight.dtype

    def weights(self) -> list[Tensor]:
        """Each [out, dim], in the order of their names."""
        return [getattr(self, name) for name in self.names]


@without_autocast
def _joined(*weights: Tensor) -> Tensor:
    """One matrix of them; autocast to another half precision than theirs refuses to join them, and not to multiply."""
    return torch.cat(weights)
