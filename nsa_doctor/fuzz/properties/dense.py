"""Attention the plain way: all scores, a mask, a softmax; whatever else is wrong, this is easy to believe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsa_doctor.probes.tensors.tolerance import largest

_SHORT = {"compressed": "cmp", "selected": "sel", "sliding": "win"}


@dataclass(frozen=True)
class Dense:
    """Outputs by name, with the graph behind them."""

    outs: Mapping[str, Tensor]
    largest_score: float
    sizes: Mapping[str, float]
    _inputs: Mapping[str, Tensor]

    def leaves(self, outs: Mapping[str, Tensor]) -> list[str]:
        """Names of the inputs these outputs depend on."""
        return list(self._inputs) if "out" in outs else ["q", "k_sel", "v_sel"]

    def gradients(self, name: str, direction: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of one output in a direction."""
        out = self.outs[name]
        inputs = [self._inputs[leaf] for leaf in leaves]
        loss = (out * direction.to(out)).sum()
        grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))


def dense(tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Dense:
    """All branches and their mix; masks [B, T, G, keys] by branch, sums in float32 at least."""
    inputs = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    q, groups = inputs["q"], inputs["k_sel"].shape[2]
    outs = {
        branch: _masked(q, inputs[f"k_{_SHORT[branch]}"], inputs[f"v_{_SHORT[branch]}"], mask)
        for branch, mask in masks.items()
    }
    weights = _wide(inputs["gates"]).repeat_interleave(q.shape[2] // groups, dim=2)
    mixed = sum((weights[..., index, None] * _wide(outs[branch]) for index, branch in enumerate(masks)))
    assert isinstance(mixed, Tensor)
    outs["out"] = mixed.to(q.dtype)
    keys = [name for name in inputs if name.startswith("k_")]
    sizes = {"q": largest(q), "gates": largest(inputs["gates"]), "k": max(largest(inputs[name]) for name in keys)}
    sizes["v"] = max(largest(inputs[name]) for name in inputs if name.startswith("v_"))
    return Dense(outs, _largest_score(q, [inputs[name] for name in keys]), sizes, inputs)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    heads = q.shape[2] // k.shape[2]
    missing = mask.shape[-1] - k.shape[1]  # a trimmed window: the oldest tokens, which nobody may read
    k, v = (pad(_wide(x), (0, 0, 0, 0, missing, 0)).repeat_interleave(heads, dim=2) for x in (k, v))
    mask = mask.repeat_interleave(heads, dim=2)
    if not k.shape[1]:
        return q[..., :1].expand(*q.shape[:3], v.shape[-1]) * 0
    scores = torch.einsum("bthd,bshd->bths", _wide(q), k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).masked_fill(~mask, 0)
    return torch.einsum("bths,bshd->bthd", weights, v).to(q.dtype)


def _largest_score(q: Tensor, keys: Sequence[Tensor]) -> float:
    """Largest Σ |q·k| / √Dk, by which the rounding of a score grows."""
    queries = q.detach().double().abs()
    found = [
        largest(torch.einsum("bthd,bshd->bhts", queries, k.detach().double().abs().repeat_interleave(
            q.shape[2] // k.shape[2], dim=2))) for k in keys
    ]  # fmt: skip
    return max(found) / float(q.shape[-1]) ** 0.5


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
