"""Decoding by kernels against the float64 oracle and plain decoding, on a GPU, or interpreted in plain Python on a CPU.

TRITON_INTERPRET=1 python -m tests.nsa.nn.step_cases     float32 on a CPU: no GPU, the kernels' logic alone
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor

from nsa.config import NSAConfig
from nsa.nn import NSAttention
from nsa.nn import step as step_module
from nsa.nn.cache import NSACache
from nsa.ops.decode import memory as memory_module
from nsa.ops.decode.memory import StepMemory
from nsa.ops.score.reference import block_importance

_SMALL: dict[str, object] = {
    "dim": 24, "n_heads": 4, "n_kv_groups": 2, "d_k": 6, "d_v": 5, "l": 4, "d": 2, "l_sel": 8, "n_sel": 4, "w": 7,
}  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """Two rows of a prompt, then single tokens; split: keys of one program; scores: that one weighs at once."""

    prompt: int
    num_steps: int
    config: dict[str, object] = field(default_factory=dict)
    split: int = memory_module.SPLIT
    scores: int = 2048


CASES = {
    "from-one-token": Steps(1, 45),
    "past-the-window": Steps(9, 20, {"phi": "conv", "gate": "sigmoid"}),
    "shared-touching-blocks": Steps(3, 24, {"phi": "mlp", "shared_kv": True, "l": 8, "d": 8, "l_sel": 8, "w": 1}),
    "a-window-beyond-the-tokens": Steps(30, 12, {"w": 100, "n_kv_groups": 1, "l": 2, "d": 2, "l_sel": 4, "n_sel": 5}),
    "many-splits": Steps(60, 8, {"l": 4, "d": 4, "l_sel": 12, "n_sel": 3, "w": 50}, split=8, scores=64),
    "slots-longer-than-a-tile": Steps(300, 3, {"l_sel": 140, "l": 20, "d": 10, "n_sel": 3, "w": 33}),
    "more-heads-than-a-tile-has-rows": Steps(40, 3, {"n_heads": 70, "n_kv_groups": 1, "d_k": 16, "d_v": 16}),
    "odd-head-sizes": Steps(90, 6, {"n_heads": 6, "n_kv_groups": 3, "d_k": 24, "d_v": 40, "l_sel": 16, "n_sel": 4}),
    "m7c": Steps(1100, 3, {"n_heads": 12, "d_k": 64, "d_v": 64, "l": 32, "d": 16, "l_sel": 64, "n_sel": 16, "w": 512}),
    "one-branch": Steps(20, 6, {"branch": "sel"}),
}


def layer_of(case: Steps, dtype: torch.dtype, device: str) -> NSAttention:
    """A layer with random parameters."""
    torch.manual_seed(0)
    layer = NSAttention(NSAConfig.model_validate({**_SMALL, **case.config}))
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else parameter + noise / 2)
    return layer.to(device, dtype)


@contextmanager
def kernels(case: Steps, device: str) -> Iterator[None]:
    """Programs do as much as the case says; on a CPU the kernels are interpreted in place of being refused."""
    from nsa.ops.decode import triton

    with ExitStack() as patched:
        for module in (memory_module, triton):
            patched.enter_context(patch.object(module, "SPLIT", case.split))
        patched.enter_context(patch.object(triton, "_SCORES", case.scores))
        if device == "cpu":
            patched.enter_context(patch.object(step_module, "_why_not_served", lambda *_: None))
        yield


@torch.no_grad()
def errors_of_steps(case: Steps, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative errors over all steps against the oracle in float64, blocks held as the kernels chose them.

    kernels: of decoding by kernels, before every step of which what holds no token is NaN. plain: of plain decoding in
    the same dtype. gap: how much more important a block left out is than one chosen, relative.
    """
    layer = layer_of(case, dtype, device)
    exact = deepcopy(layer).double().cpu()
    exact.impl = "reference"
    x = torch.randn(2, case.prompt + case.num_steps, layer.config.dim).to(device, dtype)
    caches = [module.new_cache(2, case.prompt + 4) for module in (layer, layer, exact)]
    prompt = x[:, : case.prompt]
    for module, cache in zip((layer, layer, exact), caches, strict=True):
        module(prompt.to(first_weight(module)), cache)
    found: dict[str, list[Tensor]] = {"kernels": [], "plain": [], "oracle": []}
    gaps = [0.0]
    with kernels(case, device):
        for token in x[:, case.prompt :].split(1, dim=1):
            caches[0].fill_unwritten(torch.nan)
            assert layer.why_not_stepped(token, caches[0]) is None
            found["kernels"].append(layer(token, caches[0]).double().cpu())
            memory = memory_of(caches[0])
            slots = memory.slots[:, None].long()
            gaps.append(gap_of_choice(memory, caches[0].length))
            for name, module, cache in (("plain", layer, caches[1]), ("oracle", exact, caches[2])):
                like = first_weight(module)
                gated = module.branches(token.to(like), cache, slots=slots.to(like.device)).gated
                found[name].append(module.out_proj(gated.flatten(2)).double().cpu())
    joined = {name: torch.cat(outputs, dim=1) for name, outputs in found.items()}
    size = joined["oracle"].norm()
    errors = {name: float((joined[name] - joined["oracle"]).norm() / size) for name in ("kernels", "plain")}
    return errors | {"gap": max(gaps)}


@torch.no_grad()
def error_under_autocast(device: str) -> float:
    """Relative error of decoding by kernels against plain decoding where float32 weights compute in float16."""
    case = Steps(20, 8, {"phi": "mlp"})
    layer = layer_of(case, torch.float32, device)
    x = torch.randn(2, case.prompt + case.num_steps, layer.config.dim, device=device)
    caches, found = [layer.new_cache(2) for _ in range(2)], [0.0]
    with kernels(case, device), torch.autocast(device, torch.float16):
        for cache in caches:
            layer(x[:, : case.prompt], cache)
        for token in x[:, case.prompt :].split(1, dim=1):
            assert layer.why_not_stepped(token, caches[0]) is None
            plain = layer.out_proj(layer.branches(token, caches[1]).gated.flatten(2))
            found.append(float((layer(token, caches[0]) - plain).norm() / plain.norm()))
    return max(found)


def first_weight(module: NSAttention) -> Tensor:
    """What says where a layer computes, and in which dtype."""
    return next(module.parameters())


def memory_of(cache: NSACache) -> StepMemory:
    """What the kernels fill."""
    assert cache._steps is not None
    return cache._steps


def rows_of(memory: StepMemory, rows: slice) -> StepMemory:
    """A copy of some rows."""
    tensors = {name: x for name, x in vars(memory).items() if isinstance(x, Tensor)}
    shared = {name: tensors.pop(name).clone() for name in ("count", "frequencies")}
    return StepMemory(memory.geometry, **shared, **{name: x[rows].clone() for name, x in tensors.items()})


def gap_of_choice(memory: StepMemory, length: int) -> float:
    """How much more important, in float64, a block left out is than one chosen: relative, 0 where none is.

    Asserts that slots ascend, that forced blocks are among them, and that there are as many as may be.
    """
    geometry, num_blocks = memory.geometry, memory.geometry.num_blocks(length)
    q, keys = (x.double().cpu() for x in (memory.q, memory.k_cmp[:, :, : geometry.num_compressed(length)]))
    heads = q.shape[1] // keys.shape[1]
    scores = torch.einsum("bhd,bhcd->bhc", q, keys.repeat_interleave(heads, 1)) / q.shape[-1] ** 0.5
    importance = block_importance(scores.softmax(-1)[:, None], keys.shape[1], num_blocks, geometry)[:, 0]
    slots, num = memory.slots.long().cpu(), min(num_blocks, geometry.n_sel)
    assert bool((slots[..., :num].diff(dim=-1) > 0).all())
    assert bool((slots[..., num:] == -1).all())
    chosen = torch.zeros_like(importance, dtype=torch.bool).scatter(-1, slots[..., :num], True)
    forced = torch.zeros_like(chosen)
    forced[..., list(geometry.forced_blocks(length - 1))] = True
    assert bool((chosen | ~forced).all())
    if num == num_blocks:
        return 0.0
    least = importance.masked_fill(~chosen | forced, torch.inf).amin(-1)
    most = importance.masked_fill(chosen, 0).amax(-1)
    return float((1 - least / most).clamp(min=0).max())


def main() -> None:
    """One line a case; an error ends it."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    for name, case in CASES.items():
        errors = errors_of_steps(case, torch.float32, "cpu")
        print(f"{name}: {errors}", flush=True)
        assert errors["kernels"] <= 4 * errors["plain"] + 1e-6, name
        assert errors["gap"] <= 1e-5, name
    error = error_under_autocast("cpu")
    print(f"under autocast: {error}")
    assert error <= 8 * torch.finfo(torch.float16).eps


if __name__ == "__main__":
    main()
