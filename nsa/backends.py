"""Which implementation serves which branch on this device, and why; the only reader of the NSA_* flags.

`impl` names what a caller wants:

- `reference`: the oracle. Any device, slow.
- `vectorized`: plain torch, any device and dtype.
- `fused`: torch's own fused attention for the sliding branch, vectorized for the rest.
- `triton`: our Triton kernels.
- `flash`: flash-attn for the sliding and the compressed branch; the selected one as under `auto`.
- `auto`: the best that can serve; what it chose and why is in the route.

A named implementation that cannot serve is refused, never replaced. `NSA_USE_FA2=0` forbids flash-attn; `=1` asks
`auto` for it where the machine can serve. `NSA_PREFILL_BATCHED=0` makes prefill go token by token.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, get_args

import torch

Impl = Literal["reference", "vectorized", "fused", "triton", "flash", "auto"]
Effective = Literal["reference", "vectorized", "fused", "triton", "flash"]
BRANCHES = ("compressed", "selected", "sliding")

_MAX_KERNEL_HEAD_SIZE = 256  # of flash-attn and of our own


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
    no_triton = why_not_triton(device, dtype, head_size)
    for name, why_not in (("flash", no_flash), ("triton", no_triton)):
        if impl == name and why_not is not None:
            raise ValueError(f"impl={name!r} cannot serve: {why_not}; use impl='auto' to let it choose")
    flash_is_asked_for = impl == "flash" or _flag("NSA_USE_FA2", flags) is True
    return Routes(
        compressed=_compressed(impl, no_flash, no_triton, flash_is_asked_for),
        selected=_selected(impl, no_triton),
        sliding=_sliding(impl, no_flash, no_triton, device),
    )


def _compressed(impl: Impl, no_flash: str | None, no_triton: str | None, flash_is_asked_for: bool) -> Route:
    made = partial(Route, "compressed", impl)
    if impl == "fused":
        return made("vectorized", "torch's fused attention returns no probabilities to score by")
    if impl != "triton" and no_flash is None and (flash_is_asked_for or no_triton is not None):
        return made("flash", "asked for by name" if impl == "flash" else "flash-attn can serve")
    if no_triton is None:
        return made("triton", "asked for by name" if impl == "triton" else "the Triton kernel can serve")
    return made("vectorized", f"plain torch, since {no_flash} and {no_triton}")


def _selected(impl: Impl, no_triton: str | None) -> Route:
    made = partial(Route, "selected", impl)
    if impl == "fused":
        return made("vectorized", "torch has no fused kernel that reads chosen blocks")
    if no_triton is None:
        return made("triton", "asked for by name" if impl == "triton" else "the Triton kernel can serve")
    return made("vectorized", f"plain torch, since {no_triton}")


def _sliding(impl: Impl, no_flash: str | None, no_triton: str | None, device: torch.device) -> Route:
    made = partial(Route, "sliding", impl)
    if impl in ("fused", "triton"):
        return made(impl, "asked for by name")
    if no_flash is None:
        return made("flash", "asked for by name" if impl == "flash" else "flash-attn can serve")
    if no_triton is None:
        return made("triton", f"the Triton kernel, since {no_flash}")
    if device.type == "cuda":
        return made("fused", f"torch's fused attention, since {no_flash} and {no_triton}")
    return made("vectorized", f"plain torch, since {no_flash}")


def why_not_triton(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Why our Triton kernels cannot serve tensors of this kind, or None when they can."""
    return _why_no_kernel("the Triton kernel", "triton", device, dtype, head_size)


def why_not_flash(
    device: torch.device, dtype: torch.dtype, head_size: int, flags: Mapping[str, str] | None = None
) -> str | None:
    """Why flash-attn cannot serve tensors of this kind, or None when it can; flags as for `route`."""
    if _flag("NSA_USE_FA2", flags) is False:
        return "NSA_USE_FA2=0 forbids flash-attn"
    return _why_no_kernel("flash-attn", "flash_attn", device, dtype, head_size)


# Compiled code keeps the routes that it was traced with.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _why_no_kernel(name: str, package: str, device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """What flash-attn and our own kernels need alike."""
    if device.type != "cuda":
        return f"{name} needs a CUDA device, got {device.type}"
    if not _is_installed(package):
        return f"{package.replace('_', '-')} is not installed"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"{name} needs float16 or bfloat16, got {dtype}"
    if head_size > _MAX_KERNEL_HEAD_SIZE:
        return f"{name} serves head sizes up to {_MAX_KERNEL_HEAD_SIZE}, got {head_size}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"{name} needs compute capability 8.0 or newer"
    return None


@cache  # the path is searched once: that takes as long as a short kernel
def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def prefill_is_batched() -> bool:
    """Whether prefill takes all tokens in one call: yes, unless NSA_PREFILL_BATCHED=0."""
    return _flag("NSA_PREFILL_BATCHED") is not False


def requested_flags() -> dict[str, str | None]:
    """The flags as the environment holds them, None where unset."""
    return {name: os.environ.get(name) for name in ("NSA_USE_FA2", "NSA_PREFILL_BATCHED")}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _flag(name: str, flags: Mapping[str, str] | None = None) -> bool | None:
    value = (os.environ if flags is None else flags).get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name} must be 0 or 1, got {value!r}")
    return None if value == "" else value == "1"
