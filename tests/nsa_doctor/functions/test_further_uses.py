"""Shared memory, a single query, a window without its mask, the gradient of lse, and tiles of queries without keys."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.functions.load_function import without_refused_mask
from nsa_doctor.core.finding import Finding, Verdict
from tests.nsa_doctor.functions.examined import results, subject_of


def attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log of the sum of exponentials of [B, H, S, D]; zero where nothing is seen."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * scale).masked_fill(~seen, -1e30)
    weights = scores.softmax(-1) * seen.any(-1, keepdim=True)
    return weights @ v, scores.logsumexp(-1)


def causal(queries: int, keys: int, window: int = 10**6) -> Tensor:
    age = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    return (age >= 0) & (age < window)


class _GradientOfKeys(torch.autograd.Function):
    """Hands the gradient on in memory with the strides of what it is of."""

    @staticmethod
    def forward(ctx: Any, k: Tensor) -> Tensor:
        ctx.strides = k.stride()
        return k.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (given,) = gradients
        laid = torch.empty_strided(given.shape, ctx.strides)
        for row in range(given.shape[0]):
            for head in range(given.shape[1]):
                laid[row, head] = given[row, head]
        return laid


def keeps_strides(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    seen = torch.arange(key.shape[2]) <= torch.arange(query.shape[2])[:, None]
    return attended(query, _GradientOfKeys.apply(key), value, seen, query.shape[-1] ** -0.5)[0]


def takes_the_strides_of_keys(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    if value.shape == key.shape:
        value = value.as_strided(key.shape, key.stride(), value.storage_offset())
    seen = torch.arange(key.shape[2]) <= torch.arange(query.shape[2])[:, None]
    return attended(query, key, value, seen, query.shape[-1] ** -0.5)[0]


def of_transformers(off: int = 0, *, reads_all: bool = False) -> Callable[..., tuple[Tensor, None]]:
    """`off`: keys that its own window has too many. reads_all: a single query heeds no mask."""

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        queries, keys = query.shape[2], key.shape[2]
        seen = causal(queries, keys, 10**6 if sliding_window is None else sliding_window + off)
        if attention_mask is not None and not (reads_all and queries == 1):
            seen = attention_mask == 0
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attended(query, key, value, seen, scale)[0].transpose(1, 2), None

    return attend


class Sums(NamedTuple):
    """What flex_attention gives with return_lse."""

    out: Tensor
    lse: Tensor


def flexible(*, detaches: bool, hides: bool = False) -> Callable[..., Tensor | Sums]:
    """detaches: what the loss takes of lse has a gradient in the output alone. hides: lse has none at all, and says so.

    A backward that forgets it is this: the value is that of lse, and its gradient is not.
    """

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: object = None,
        block_mask: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
    ) -> Tensor | Sums:
        queries, keys = query.shape[2], key.shape[2]
        seen = torch.ones(queries, keys, dtype=torch.bool)
        if block_mask is not None:
            at = torch.arange(queries)[:, None], torch.arange(keys)
            rows = [[block_mask.mask_mod(b, h, *at) for h in range(query.shape[1])] for b in range(len(query))]
            seen = torch.stack([torch.stack(row) for row in rows])
        out, lse = attended(query, key, value, seen, query.shape[-1] ** -0.5 if scale is None else scale)
        if hides:
            lse = lse.detach()
        elif detaches:
            lse = lse.detach() + 0 * query.sum()
        return Sums(out, lse) if return_lse else out

    return attend


_causal = causal  # where an argument has that name


def as_flash(factor: float) -> Callable[..., Any]:
    """The gradient of lse, times that; flash-attn leaves it out."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        queries, keys = q.shape[2], k.shape[2]
        seen = _causal(queries, keys) if causal else torch.ones(queries, keys, dtype=torch.bool)
        out, lse = attended(q, k, v, seen, q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
        lse = factor * lse + (1 - factor) * lse.detach()
        out = out.transpose(1, 2).contiguous()
        return (out, lse, None) if return_attn_probs else out

    return attend


class _Stops(torch.autograd.Function):
    """Attention whose backward ends at the first tile of 64 queries that sees no key."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        q, k, v = given
        return attended(q, k, v, causal(q.shape[2], k.shape[2]), q.shape[-1] ** -0.5)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        seen = causal(q.shape[2], k.shape[2])
        with torch.enable_grad():
            out, _ = attended(q, k, v, seen, q.shape[-1] ** -0.5)
        is_over = not bool(seen[:64].any())
        return torch.autograd.grad(out, (q, k, v), gradients[0] * (not is_over))


def stops(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Called as flash_attn_func is."""
    return _Stops.apply(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def found(function: Callable[..., Any], like: str, spec: str, code: str) -> list[Finding]:
    return list(results(subject_of(function, like, spec), [code])[code].findings)


WRONG: Mapping[str, tuple[Callable[..., Any], str, str, str, str, str]] = {
    "gradients in shared memory": (keeps_strides, "sdpa", "causal", "FUN303", "dk", "with stride 0 between rows of k"),
    "values by the strides of keys": (
        *(takes_the_strides_of_keys, "sdpa", "causal", "FUN303", "out"),
        "with ",
    ),
    "a mask for one query": (
        *(of_transformers(reads_all=True), "hf", "causal", "FUN305", "out"),
        "with a mask for one query",
    ),
    "a window without a mask": (
        *(of_transformers(1), "hf", "causal,window=16", "FUN305", "out"),
        "without a mask, the module being causal",
    ),
    "the gradient of lse": (
        *(flexible(detaches=True), "flex", "causal", "FUN305", "dq"),
        "with return_lse=True and a gradient of lse",
    ),
    "sign of the gradient of lse": (
        *(as_flash(-1.0), "flash", "causal", "FUN305", "dq"),
        "with return_attn_probs=True and a gradient of lse",
    ),
    "tiles of queries without keys": (stops, "flash", "causal", "FUN306", "dq", "there are far more queries than keys"),
}


@pytest.mark.parametrize(("function", "like", "spec", "code", "tensor", "says"), WRONG.values(), ids=WRONG.keys())
def test_it_is_found(function: Callable[..., Any], like: str, spec: str, code: str, tensor: str, says: str) -> None:
    findings = found(function, like, spec, code)
    assert any(each.evidence["tensor"] == tensor and each.message.startswith(says) for each in findings), findings


def ignores_the_window(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Names no window: its mask says it."""
    return of_transformers()(module, query, key, value, attention_mask, scaling)


RIGHT: Mapping[str, tuple[Callable[..., Any], str, str, str]] = {
    "windows": (of_transformers(), "hf", "causal,window=16", "FUN305"),
    "windows by a mask": (ignores_the_window, "hf", "causal,window=16", "FUN305"),
    "lse with its gradient": (flexible(detaches=False), "flex", "causal", "FUN305"),
    "lse with its gradient, as flash": (as_flash(1.0), "flash", "causal", "FUN305"),
    "lse whose gradient is left out, as flash-attn does": (as_flash(0.0), "flash", "causal", "FUN305"),
    "lse without one": (flexible(detaches=False, hides=True), "flex", "causal", "FUN305"),
}


@pytest.mark.parametrize(("function", "like", "spec", "code"), RIGHT.values(), ids=RIGHT.keys())
def test_it_is_silent(function: Callable[..., Any], like: str, spec: str, code: str) -> None:
    assert found(function, like, spec, code) == []


def windowed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A drop-in whose window is its own."""
    if attn_mask is not None:
        raise ValueError("the window is built in")
    return attended(query, key, value, causal(query.shape[2], key.shape[2], 32), query.shape[-1] ** -0.5)[0]


def test_a_window_of_its_own_is_examined_without_the_mask_that_it_refuses() -> None:
    subject = subject_of(windowed, "sdpa", "causal,window=32,builtin,square")
    examined = results(without_refused_mask(subject), ["FUN101", "FUN201", "FUN301"])
    assert {each.verdict for each in examined.values()} == {Verdict.PASS}
    declared = replace(subject.spec, has_mask=True)
    assert without_refused_mask(replace(subject, spec=declared)).function is windowed


class _Recomputed(torch.autograd.Function):
    """Scores in powers of two forward, and by another order of products backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        scores = (q * (scale / 0.6931471805599453)) @ k.mT
        lse = torch.logsumexp(scores * 0.6931471805599453, -1, keepdim=True) / 0.6931471805599453
        ctx.save_for_backward(q, k, v, lse)
        ctx.scale = scale
        return torch.exp2(scores - lse) @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, lse = ctx.saved_tensors
        (grad,) = gradients
        weights = torch.exp2((q @ k.mT) * (ctx.scale / 0.6931471805599453) - lse)
        onto = grad @ v.mT
        change = weights * (onto - (weights * onto).sum(-1, keepdim=True)) * ctx.scale
        return change @ k, change.mT @ q, weights.mT @ grad, None


def recomputed(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    return _Recomputed.apply(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale)


def test_scores_that_are_computed_again_in_another_way_are_no_fault_of_large_ones() -> None:
    assert found(recomputed, "sdpa", "full", "FUN302") == []
