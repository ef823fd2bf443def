"""Functions that are wrong in one way each: a flash-like forward and a backward by hand, with a slip put in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 32


@dataclass(frozen=True)
class Slip:
    """Which line is wrong, by name."""

    name: str = ""


def _scores(q: Tensor, k: Tensor, causal: bool, window: int, scale: float, slip: str) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * scale
    queries, keys = q.shape[1], k.shape[1]
    shift = 0 if slip == "mask at the top left" else keys - queries
    own, key = torch.arange(queries)[:, None] + shift, torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen &= key <= own + (1 if slip == "reads the next key" else 0) - (1 if slip == "not its own key" else 0)
        seen |= key == 0
    if window >= 0:
        seen &= key >= own - window - (1 if slip == "window one too long" else 0)
    if slip == "last partial tile left out":
        seen &= (key < keys // BLOCK * BLOCK) | (key == 0)
    if slip == "last key left out" and keys > 64:
        seen &= key < keys - 1
    if slip == "tile skipped at 128" and keys >= 128:
        seen &= (key < 64) | (key >= 96)
    return scores.masked_fill(~seen, -torch.inf)


class Attention(torch.autograd.Function):
    """Dense attention with a backward by hand."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int, scale: float, slip: str
    ) -> Tensor:
        ratio = q.shape[2] // k.shape[2]
        heads = (
            (lambda x: x.repeat(1, 1, ratio, 1))
            if slip == "heads interleaved"
            else (lambda x: x.repeat_interleave(ratio, 2))
        )
        wide_k, wide_v = heads(k), heads(v)
        scores = _scores(q, wide_k, causal, window, scale * (1.02 if slip == "scale off by 2 %" else 1.0), slip)
        if slip == "no peak subtracted":
            weights = torch.exp(scores)
            weights = weights / weights.sum(-1, keepdim=True)
        elif slip == "weights in bfloat16":
            weights = scores.softmax(-1).bfloat16().float()
        else:
            weights = scores.softmax(-1)
        out = torch.einsum("bhij,bjhd->bihd", weights, wide_v.float())
        if slip == "one row of the last head zero":
            out[:, out.shape[1] // 2, -1] = 0
        ctx.save_for_backward(q, wide_k, wide_v, weights)
        ctx.sizes = (ratio, scale, slip)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        ratio, scale, slip = ctx.sizes
        dout = gradients[0]
        if slip == "strides of dout ignored":
            dout = torch.as_strided(dout, dout.shape, torch.empty(dout.shape).stride()) if _fits(dout) else dout
        dout = dout.float()
        dv = torch.einsum("bhij,bihd->bjhd", weights, dout)
        change = torch.einsum("bihd,bjhd->bhij", dout, v.float())
        if slip != "no sum over the row":
            change = change - (change * weights).sum(-1, keepdim=True)
        change = change * weights
        dq = torch.einsum("bhij,bjhd->bihd", change, k.float()) * scale
        dk = torch.einsum("bhij,bihd->bjhd", change, q.float()) * scale
        dq, dk, dv = _slipped(dq, dk, dv, slip, scale)
        if ratio > 1:
            dk, dv = (x.unflatten(2, (-1, ratio)) for x in (dk, dv))
            dk, dv = (x[:, :, :, 0] if slip == "one head of a group" else x.sum(3) for x in (dk, dv))
        if slip == "k detached":
            return dq.to(q.dtype), None, dv.to(q.dtype), None, None, None, None
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None, None, None


def _fits(dout: Tensor) -> bool:
    return dout.untyped_storage().nbytes() >= dout.numel() * dout.element_size()


def _slipped(dq: Tensor, dk: Tensor, dv: Tensor, slip: str, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    match slip:
        case "dk 5 % too large":
            return dq, dk * 1.05, dv
        case "dq without scale":
            return dq / scale, dk, dv
        case "dv of the last key lost":
            return dq, dk, torch.cat([dv[:, :-1], torch.zeros_like(dv[:, -1:])], 1)
        case "dk of the second tile halved":
            factor = torch.ones(dk.shape[1])
            factor[BLOCK : 2 * BLOCK] = 0.5
            return dq, dk * factor[:, None, None], dv
        case "dq of the last head negative":
            factor = torch.ones(dq.shape[2])
            factor[-1] = -1
            return dq * factor[:, None], dk, dv
        case "dk and dv exchanged":
            return dq, dv, dk
    return dq, dk, dv


def flash(slip: str) -> Callable[..., Any]:
    """A function called as flash_attn_func is, with that slip."""
    kept: dict[Any, Any] = {}

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Any:
        scale = softmax_scale or q.shape[-1] ** -0.5
        if slip == "kept by shape":
            if q.shape not in kept:
                kept[q.shape] = _attend(q, k, v, causal, window_size[0], scale, "").detach()
            return _attend(q, k, v, causal, window_size[0], scale, "") * 0 + kept[q.shape]
        if slip == "kept by address and sum":
            key = (
                q.data_ptr(),
                k.data_ptr(),
                v.data_ptr(),
                *(float(x.detach().double().sum().round(decimals=3)) for x in (q, k, v)),
            )
            if key not in kept:
                kept[key] = (_attend(q, k, v, causal, window_size[0], scale, ""), q, k, v)
            return kept[key][0]
        if slip == "float32 returned":
            return _attend(q, k, v, causal, window_size[0], scale, "").float()
        if slip == "query scaled in place":
            with torch.no_grad():
                q.mul_(scale)
            return _attend(q, k, v, causal, window_size[0], 1.0, "")
        if slip == "raises at odd lengths":
            q.view(q.shape[0], q.shape[1] // 2, 2, *q.shape[2:])
        if slip == "wrong at other head sizes":
            scale = softmax_scale or 64**-0.5
        if slip == "rows of the batch mixed":
            v = v + 0.02 * v.roll(1, 0)
        if slip == "last tile not written":
            out = _attend(q, k, v, causal, window_size[0], scale, "")
            made = torch.empty_like(out)
            made[:, : q.shape[1] // BLOCK * BLOCK] = out[:, : q.shape[1] // BLOCK * BLOCK]
            return made
        return _attend(q, k, v, causal, window_size[0], scale, slip)

    return attend


def _attend(*arguments: Any) -> Tensor:
    out: Tensor = Attention.apply(*arguments)
    return out


# By slip: the spec, the dtype, and the code of the first finding with the tensor that it names.
WRONG: dict[str, tuple[str, str, str, str]] = {
    "reads the next key": ("causal", "float32", "FUN201", ""),
    "not its own key": ("causal", "bfloat16", "FUN201", ""),
    "mask at the top left": ("causal", "float32", "FUN201", ""),
    "window one too long": ("causal,window=16", "bfloat16", "FUN201", ""),
    "last partial tile left out": ("causal", "bfloat16", "FUN201", ""),
    "last key left out": ("full", "bfloat16", "FUN201", ""),
    "tile skipped at 128": ("full", "float32", "FUN201", ""),
    "heads interleaved": ("causal,gqa=2", "float32", "FUN202", ""),
    "scale off by 2 %": ("causal", "float32", "FUN301", "out"),
    "weights in bfloat16": ("causal", "float32", "FUN301", "out"),
    "one row of the last head zero": ("causal", "bfloat16", "FUN201", ""),
    "no peak subtracted": ("causal", "float32", "FUN302", "out"),
    "wrong at other head sizes": ("causal", "float32", "FUN301", "out"),
    "rows of the batch mixed": ("causal", "float32", "FUN301", "out"),
    "last tile not written": ("causal", "float32", "FUN502", "out"),
    "kept by shape": ("causal", "float32", "FUN503", ""),
    "kept by address and sum": ("causal", "float32", "FUN503", ""),
    "float32 returned": ("causal", "bfloat16", "FUN102", "out"),
    "query scaled in place": ("causal", "float32", "FUN501", ""),
    "raises at odd lengths": ("causal", "float32", "FUN101", ""),
    "dk 5 % too large": ("causal", "bfloat16", "FUN401", "dk"),
    "dq without scale": ("causal", "bfloat16", "FUN401", "dq"),
    "no sum over the row": ("causal", "float32", "FUN401", "dq"),
    "dv of the last key lost": ("full", "bfloat16", "FUN201", ""),
    "dk of the second tile halved": ("causal", "bfloat16", "FUN401", "dk"),
    "dq of the last head negative": ("causal", "float32", "FUN401", "dq"),
    "dk and dv exchanged": ("causal", "bfloat16", "FUN401", "dk"),
    "one head of a group": ("causal,gqa=2", "bfloat16", "FUN202", ""),
    "k detached": ("causal", "float32", "FUN402", "dk"),
    "strides of dout ignored": ("causal", "float32", "FUN303", ""),
}
