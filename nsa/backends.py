"""Which implementation serves which branch on this device, and why; the only reader of the NSA_* flags.

`impl` names what a caller wants:

- `reference`: the oracle. Any device, slow.
- `vectorized`: plain torch, any device and dtype.
- `fused`: torch's own fused attention for the sliding branch, vectorized for the rest.
- `flash`: flash-attn for the sliding and the compressed branch; it cannot serve the selected one: vectorized does.
- `auto`: the best that can serve; what it chose and why is in the route.

A named implementation that cannot serve is refused, never replaced. `NSA_USE_FA2=0` forbids flash-attn; `=1` asks
`auto` for it where the machine can serve. `NSA_PREFILL_BATCHED=0` makes prefill go token by token.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

Impl = Literal["reference", "vectorized", "fused", "flash", "auto"]
Effective = Literal["reference", "vectorized", "fused", "flash"]
BRANCHES = ("compressed", "selected", "sliding")

_MAX_FLASH_HEAD_SIZE = 256


@dataclass(frozen=True)
class Route:
    """What serves one branch."""

    branch: str
    requested: str
    effective: Effective
    why: str


@dataclass(frozen=True)
class Routes:
    """What serves each branch."""

    compressed: Route
    selected: Route
    sliding: Route

    def fa2_effective(self) -> dict[str, bool]:
        """`fa2_all_eff`, `fa2_win_eff` and `fa2_cmp_eff`, as the engineers' reports name them."""
        window, compressed = self.sliding.effective == "flash", self.compressed.effective == "flash"
        return {"fa2_all_eff": window and compressed, "fa2_win_eff": window, "fa2_cmp_eff": compressed}


def route(
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    impl: Impl = "auto",
    flags: Mapping[str, str] | None = None,
) -> Routes:
    """Decide what serves each branch for tensors of this kind; head_size is the larger of Dk and Dv.

    flags: decide as if these were set, and no others, in place of the environment's.
    Raises ValueError when `impl` is unknown, is a name that cannot serve, or contradicts a flag.
    """
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}")
    if impl in ("reference", "vectorized"):
        return Routes(*(Route(branch, impl, impl, "asked for by name") for branch in BRANCHES))
    no_flash = why_not_flash(device, dtype, head_size, flags)
    if impl == "flash":
        if no_flash is not None:
            raise ValueError(f"impl='flash' cannot serve: {no_flash}; use impl='auto' to let it choose")
        outer: Effective = "flash"
        why = "asked for by name"
    elif impl == "fused":
        outer, why = "fused", "asked for by name"
    elif no_flash is None:
        outer, why = "flash", "flash-attn can serve"
    elif device.type == "cuda":
        outer, why = "fused", f"torch's fused attention, since {no_flash}"
    else:
        outer, why = "vectorized", f"plain torch, since {no_flash}"
    vectorized = Route("selected", impl, "vectorized", "no fused kernel reads chosen blocks")
    staircase = Route("compressed", impl, "vectorized", "torch's fused attention returns no probabilities to score by")
    return Routes(
        compressed=staircase if outer == "fused" else Route("compressed", impl, outer, why),
        selected=vectorized,
        sliding=Route("sliding", impl, outer, why),
    )


def why_not_flash(
    device: torch.device, dtype: torch.dtype, head_size: int, flags: Mapping[str, str] | None = None
) -> str | None:
    """Why flash-attn cannot serve tensors of this kind, or None when it can; flags as for `route`."""
    if _flag("NSA_USE_FA2", flags) is False:
        return "NSA_USE_FA2=0 forbids flash-attn"
    if device.type != "cuda":
        return f"flash-attn needs a CUDA device, got {device.type}"
    if importlib.util.find_spec("flash_attn") is None:
        return "flash-attn is not installed"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attn needs float16 or bfloat16, got {dtype}"
    if head_size > _MAX_FLASH_HEAD_SIZE:
        return f"flash-attn serves head sizes up to {_MAX_FLASH_HEAD_SIZE}, got {head_size}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "flash-attn needs compute capability 8.0 or newer"
    return None


def prefill_is_batched() -> bool:
    """Whether prefill takes all tokens in one call: yes, unless NSA_PREFILL_BATCHED=0."""
    return _flag("NSA_PREFILL_BATCHED") is not False


def requested_flags() -> dict[str, str | None]:
    """The flags as the environment holds them, None where unset."""
    return {name: os.environ.get(name) for name in ("NSA_USE_FA2", "NSA_PREFILL_BATCHED")}


def _flag(name: str, flags: Mapping[str, str] | None = None) -> bool | None:
    value = (os.environ if flags is None else flags).get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name} must be 0 or 1, got {value!r}")
    return None if value == "" else value == "1"
