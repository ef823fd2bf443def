"""Calls of attention functions, as users make them: shapes, layouts, magnitudes, options, and what came before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LAYOUTS = ("plain", "transposed", "fused", "offset", "expanded")
HISTORIES = (
    "one call",  # forward and backward
    "other values before",  # the second of two calls of one shape
    "same beginning before",  # the second of two calls whose queries and keys begin with the same token
    "longer before",  # a call on twice the length comes first
    "answer kept",  # the first answer, looked at after the second call
    "two forwards before backward",  # the first call's gradients, when another forward has come between
    "values replaced in place",  # the same tensors hold other values than in the call before
    "seeded dropout",  # gradients against differences of the function itself, with one seed
)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One call: sizes of the tensors, how they lie in memory, what is asked, and which calls were made before."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 0  # as many as heads
    queries: int = 70
    keys: int = 0  # as many as queries
    dim: int = 16
    dim_v: int = 0  # as dim
    dtype: str = "float32"
    gain: float = 1.0  # of the queries
    shift: float = 0.0  # of all logits
    layout: str = "plain"
    grad_layout: str = "plain"
    needs_grad: str = "qkv"
    history: str = "one call"
    seed: int = 0
    torch_seed: int = 0  # of torch's own generator, before the calls
    lengths: tuple[int, ...] = ()
    key_lengths: tuple[int, ...] = ()
    capacity: int = 0  # of a cache
    new_tokens: int = 0  # written to the cache by the call
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.layout in LAYOUTS, self.layout
        assert self.history in HISTORIES, self.history

    @property
    def num_keys(self) -> int:
        return self.keys or self.queries

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def scale(self) -> float:
        return self.options.get("scale") or self.dim**-0.5

    def __str__(self) -> str:
        sizes = f"B={self.batch} H={self.heads} Hk={self.num_kv_heads} D={self.dim} {self.dtype}"
        if self.lengths:
            sizes += f" lengths={self.lengths}" + (f" of keys {self.key_lengths}" if self.key_lengths else "")
        else:
            sizes += f" Sq={self.queries} Sk={self.num_keys}"
        changed = {
            "queries times": (self.gain, 1.0),
            "all logits plus": (self.shift, 0.0),
            "layout": (self.layout, "plain"),
            "layout of the gradient": (self.grad_layout, "plain"),
            "gradients of": (self.needs_grad, "qkv"),
            "seed of torch": (self.torch_seed, 0),
        }
        rest = [f"{name} {value}" for name, (value, usual) in changed.items() if value != usual]
        rest += [f"{name}={value}" for name, value in self.options.items()]
        return ", ".join([sizes, *rest, self.history])


def lay(values: Tensor, layout: str) -> Tensor:
    """The values [B, X, Y, D] or [T, H, D], lying in memory as said; a new leaf."""
    inner = values.dim() - 2, values.dim() - 3  # of the two sides between batch and head size
    if layout == "transposed":
        return values.transpose(*inner).contiguous().transpose(*inner)
    if layout == "fused":  # a view of a projection of queries, keys and values together
        return torch.stack((values, values, values), dim=-3).unbind(-3)[1]
    if layout == "offset":
        return torch.cat((torch.full_like(values[:1], 3.0), values))[1:]
    if layout == "expanded":
        return values[:1].clone().expand(values.shape)
    return values.clone()


def drawn(shape: tuple[int, ...], scene: Scene, generator: torch.Generator) -> Tensor:
    """Normal values that the scene's dtype holds exactly, in float64."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.to(scene.torch_dtype).double()


def drawn_qkv(
    scene: Scene, q_shape: tuple[int, ...], k_shape: tuple[int, ...], generator: torch.Generator
) -> dict[str, Tensor]:
    """Queries, keys and values of these shapes, whose logits have the scene's magnitude."""
    q, k = drawn(q_shape, scene, generator) * scene.gain, drawn(k_shape, scene, generator)
    if scene.shift:  # one feature that is constant in q and in k adds the same to all logits
        q[..., 0] = (abs(scene.shift) / scene.scale) ** 0.5
        k[..., 0] = q[..., 0].flatten()[0] * (1 if scene.shift > 0 else -1)
    v = drawn((*k_shape[:-1], scene.dim_v or scene.dim), scene, generator)
    held = {name: values.to(scene.torch_dtype).double() for name, values in {"q": q, "k": k, "v": v}.items()}
    if scene.layout == "expanded":
        held = {name: values[:1].expand(values.shape) for name, values in held.items()}
    return held
