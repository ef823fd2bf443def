"""The ways attention functions are called: how a scene becomes arguments, and what each of them should answer."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from tests.gallery_functions.reference import alibi_bias, alibi_slopes, attend, bounds, visible_keys
from tests.gallery_functions.scenes import Scene, drawn, drawn_qkv, lay

Tensors = dict[str, Tensor]
LEARNED = ("q", "k", "v", "bias", "sinks")


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments, the tensors among them by name, and the right answers as a function of such tensors in any dtype."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Tensors
    truth: Callable[[Tensors], Tensors]
    written: frozenset[str] = field(default=frozenset())  # arguments that the function is meant to write into

    @property
    def leaves(self) -> Tensors:
        """The tensors that want a gradient."""
        return {name: tensor for name, tensor in self.given.items() if tensor.requires_grad}


def arrange(like: str, scene: Scene, function: Callable) -> Call:
    """The scene's call in a convention, with those keywords that the function has."""
    generator = torch.Generator().manual_seed(scene.seed)
    return CONVENTIONS[like](scene, generator, _keywords(function))


def _keywords(function: Callable) -> Callable[[str], bool]:
    """Whether the function takes a keyword."""
    if isinstance(function, torch.jit.ScriptFunction):  # which shows inspect nothing
        names = {each.name for each in function.schema.arguments}
        return names.__contains__
    parameters = inspect.signature(function).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return lambda name: takes_any or name in parameters


def _laid(scene: Scene, values: Tensors) -> Tensors:
    """The tensors as the function is given them."""
    given = {}
    for name, tensor in values.items():
        is_main = name in ("q", "k", "v")
        given[name] = lay(tensor.to(scene.torch_dtype), scene.layout if is_main else "plain")
        wanted = name[0] in scene.needs_grad if is_main else name in LEARNED
        given[name].requires_grad_(wanted)
    return given


def _kept(options: Mapping[str, Any], takes: Callable[[str], bool]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if takes(name)}


def _dense_shapes(scene: Scene) -> tuple[tuple[int, ...], tuple[int, ...]]:
    q_shape = (scene.batch, scene.heads, scene.queries, scene.dim)
    return q_shape, (scene.batch, scene.num_kv_heads, scene.num_keys, scene.dim)


def _sdpa(scene: Scene, generator: torch.Generator, takes: Callable[[str], bool]) -> Call:
    options = scene.options
    values = drawn_qkv(scene, *_dense_shapes(scene), generator)
    mask = _mask(scene, generator)
    if options.get("mask") == "learned":
        values["bias"] = drawn((1, scene.heads, 1, scene.num_keys), scene, generator)
    given = _laid(scene, values)
    attn_mask = given.get("bias", mask if mask is None or mask.dtype == torch.bool else mask.to(scene.torch_dtype))
    causal = options.get("causal", False)
    kwargs = {"attn_mask": attn_mask, "dropout_p": options.get("dropout", 0.0), "is_causal": causal}
    kwargs |= {"scale": options["scale"]} if "scale" in options else {}
    kwargs |= {"enable_gqa": True} if scene.heads != scene.num_kv_heads else {}
    seen = visible_keys(scene.queries, scene.num_keys, causal=causal, is_bottom_right=False)
    if mask is not None and mask.dtype == torch.bool:
        seen = mask if seen is None else mask & seen

    def truth(tensors: Tensors) -> Tensors:
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        float_mask = None if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
        bias = tensors.get("bias", float_mask)
        return {"out": attend(q, k, v, scale=scene.scale, visible=seen, bias=bias)[0]}

    args = (given["q"], given["k"], given["v"])
    shown = {} if mask is None else {"mask": attn_mask}
    return Call(args=args, kwargs=_kept(kwargs, takes), given=given | shown, truth=truth)


def _mask(scene: Scene, generator: torch.Generator) -> Tensor | None:
    """What the option `mask` names: random, rows, padding, float; None for none and for a learned one."""
    kind = scene.options.get("mask")
    shape = (scene.batch, 1, scene.queries, scene.num_keys)
    if kind in (None, "learned"):
        return None
    if kind == "float":
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(scene.torch_dtype)
    keep = torch.rand(shape, generator=generator) < 0.7
    keep[..., 0] = True
    if kind == "rows":  # some queries see nothing
        keep[:, :, 3:9] = False
    if kind == "padding":
        keep = torch.arange(scene.num_keys) < scene.num_keys - 9 * torch.arange(scene.batch)[:, None, None, None]
        keep = keep.expand(shape)
    return keep


def _flash(scene: Scene, generator: torch.Generator, takes: Callable[[str], bool]) -> Call:
    options = scene.options
    q_shape, k_shape = ((b, s, h, d) for b, h, s, d in _dense_shapes(scene))
    values = drawn_qkv(scene, q_shape, k_shape, generator)
    if options.get("sinks"):
        values["sinks"] = drawn((scene.heads,), scene, generator)
    given = _laid(scene, values)
    window, causal = options.get("window", (-1, -1)), options.get("causal", False)
    kwargs: dict[str, Any] = {"causal": causal, "window_size": window}
    kwargs |= {"softmax_scale": options["scale"]} if "scale" in options else {}
    kwargs |= {"softcap": options["softcap"]} if "softcap" in options else {}
    kwargs |= {"return_attn_probs": True} if options.get("lse") else {}
    kwargs |= {"sinks": given["sinks"]} if "sinks" in given else {}
    slopes = None
    if options.get("alibi"):
        slopes = alibi_slopes(scene.heads)
        if options["alibi"] == "rows":
            slopes = slopes[None] * torch.arange(1, scene.batch + 1)[:, None]
        kwargs["alibi_slopes"] = slopes
    lengths = (scene.queries, scene.num_keys)
    seen = visible_keys(*lengths, causal=causal, window=window, is_bottom_right=True)

    def truth(tensors: Tensors) -> Tensors:
        q, k, v = (tensors[name].transpose(1, 2) for name in "qkv")
        bias = None if slopes is None else alibi_bias(slopes.to(q.dtype), *lengths)
        rest = {"softcap": options.get("softcap", 0.0), "sinks": tensors.get("sinks")}
        out, lse = attend(q, k, v, scale=scene.scale, visible=seen, bias=bias, **rest)
        return {"out": out.transpose(1, 2), "lse": lse}

    args = (given["q"], given["k"], given["v"])
    return Call(args=args, kwargs=_kept(kwargs, takes), given=given, truth=truth)


def _varlen(scene: Scene, generator: torch.Generator, takes: Callable[[str], bool]) -> Call:
    lengths, key_lengths = scene.lengths, scene.key_lengths or scene.lengths
    cu_q, cu_k = bounds(lengths), bounds(key_lengths)
    q_shape = (cu_q[-1], scene.heads, scene.dim)
    given = _laid(scene, drawn_qkv(scene, q_shape, (cu_k[-1], scene.num_kv_heads, scene.dim), generator))
    window, causal = scene.options.get("window", (-1, -1)), scene.options.get("causal", False)
    kwargs = {"causal": causal, "window_size": window}
    kwargs |= {"softmax_scale": scene.options["scale"]} if "scale" in scene.options else {}

    def truth(tensors: Tensors) -> Tensors:
        parts = []
        for i, (num_queries, num_keys) in enumerate(zip(lengths, key_lengths, strict=True)):
            rows, cols = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
            q = tensors["q"][rows].transpose(0, 1)[None]
            k, v = (tensors[name][cols].transpose(0, 1)[None] for name in "kv")
            seen = visible_keys(num_queries, num_keys, causal=causal, window=window, is_bottom_right=True)
            if num_keys == 0:
                parts.append(q.transpose(1, 2)[0] * 0.0)
                continue
            parts.append(attend(q, k, v, scale=scene.scale, visible=seen)[0][0].transpose(0, 1))
        return {"out": torch.cat(parts)}

    offsets = [torch.tensor(each, dtype=torch.int32) for each in (cu_q, cu_k)]
    args = (given["q"], given["k"], given["v"], *offsets, max(lengths), max(key_lengths))
    return Call(args=args, kwargs=_kept(kwargs, takes), given=given, truth=truth)


def _kvcache(scene: Scene, generator: torch.Generator, takes: Callable[[str], bool]) -> Call:
    filled = torch.tensor(scene.lengths, dtype=torch.int32)
    batch, num_new, capacity = len(scene.lengths), scene.queries, scene.capacity
    q_shape, cache_shape = (batch, num_new, scene.heads), (batch, capacity, scene.num_kv_heads)
    values = drawn_qkv(scene, (*q_shape, scene.dim), (*cache_shape, scene.dim), generator)
    values = {"q": values["q"], "k_cache": values["k"], "v_cache": values["v"]}
    if scene.new_tokens:
        new_shape = (batch, scene.new_tokens, scene.num_kv_heads, scene.dim)
        values |= {"k": drawn(new_shape, scene, generator), "v": drawn(new_shape, scene, generator)}
    given = {name: lay(tensor.to(scene.torch_dtype), scene.layout) for name, tensor in values.items()}
    window, causal = scene.options.get("window", (-1, -1)), scene.options.get("causal", False)
    kwargs = {"cache_seqlens": filled, "causal": causal, "window_size": window}
    kwargs |= {"softmax_scale": scene.options["scale"]} if "scale" in scene.options else {}
    kwargs |= {name: given[name] for name in ("k", "v") if name in given}

    def truth(tensors: Tensors) -> Tensors:
        caches = {name: tensors[f"{name}_cache"].clone() for name in "kv"}
        outs = []
        for row, length in enumerate(scene.lengths):
            stop = length + scene.new_tokens
            for name, cache in caches.items():
                if scene.new_tokens:
                    cache[row, length:stop] = tensors[name][row]
            k, v = (caches[name][row, :stop].transpose(0, 1)[None] for name in "kv")
            seen = visible_keys(num_new, stop, causal=causal, window=window, is_bottom_right=True)
            q = tensors["q"][row].transpose(0, 1)[None]
            outs.append(attend(q, k, v, scale=scene.scale, visible=seen)[0][0].transpose(0, 1))
        written = {f"{name}_cache": cache for name, cache in caches.items()} if scene.new_tokens else {}
        return {"out": torch.stack(outs)} | written

    args = (given["q"], given["k_cache"], given["v_cache"])
    written = frozenset(("k_cache", "v_cache")) if scene.new_tokens else frozenset()
    return Call(args=args, kwargs=_kept(kwargs, takes), given=given, truth=truth, written=written)


def _flex(scene: Scene, generator: torch.Generator, takes: Callable[[str], bool]) -> Call:
    options = scene.options
    given = _laid(scene, drawn_qkv(scene, *_dense_shapes(scene), generator))
    lengths = (scene.queries, scene.num_keys)
    is_seen, is_biased = _FLEX_MASKS.get(options.get("block_mask", "")), options.get("score_mod")
    mod = _FLEX_MODS[is_biased] if is_biased else None
    kwargs: dict[str, Any] = {"score_mod": mod}
    if is_seen is not None:
        sizes = (scene.batch, scene.heads) if options["block_mask"] == "by head" else (None, None)
        kwargs["block_mask"] = create_block_mask(is_seen, *sizes, *lengths, device="cpu", BLOCK_SIZE=16)
    kwargs |= {"scale": options["scale"]} if "scale" in options else {}
    kwargs |= {"enable_gqa": True} if scene.heads != scene.num_kv_heads else {}
    heads = torch.arange(scene.heads)[:, None, None]
    rows, cols = torch.arange(lengths[0])[:, None], torch.arange(lengths[1])[None, :]

    def truth(tensors: Tensors) -> Tensors:
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        seen = None if is_seen is None else is_seen(0, heads, rows, cols).expand(scene.heads, *lengths)
        logits = q @ k.repeat_interleave(scene.heads // scene.num_kv_heads, 1).mT * scene.scale
        bias = None if mod is None else (mod(logits, 0, heads, rows, cols) - logits).to(q.dtype)
        return {"out": attend(q, k, v, scale=scene.scale, visible=seen, bias=bias)[0]}

    args = (given["q"], given["k"], given["v"])
    return Call(args=args, kwargs=_kept(kwargs, takes), given=given, truth=truth)


_FLEX_MASKS = {
    "causal": lambda b, h, i, j: i >= j,
    "selected": lambda b, h, i, j: (i >= j) & ((i - j < 20) | (j < 16) | ((j // 16 + i // 16) % 3 == 0)),
    "by head": lambda b, h, i, j: (i >= j) & (i - j < 8 + 24 * h),
}
_FLEX_MODS = {
    "capped": lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0),
    "distance": lambda s, b, h, i, j: s - 0.1 * (i - j) * (h + 1),
}


def _hf(scene: Scene, generator: torch.Generator, takes: Callable[[str], bool]) -> Call:
    options = scene.options
    values = drawn_qkv(scene, *_dense_shapes(scene), generator)
    if options.get("sinks"):
        values["sinks"] = drawn((scene.heads,), scene, generator)
    given = _laid(scene, values)
    lengths, causal = (scene.queries, scene.num_keys), options.get("causal", False)
    seen = visible_keys(*lengths, causal=causal, is_bottom_right=True)
    mask = None
    if options.get("mask"):
        keep = torch.arange(scene.num_keys) < scene.num_keys - 9 * torch.arange(scene.batch)[:, None, None, None]
        seen = keep.expand(-1, -1, scene.queries, -1) & (True if seen is None else seen)
        seen[..., 0] = True
        lowest = torch.finfo(scene.torch_dtype).min
        mask = torch.zeros(seen.shape, dtype=scene.torch_dtype).masked_fill(~seen, lowest)
    module = SimpleNamespace(
        is_causal=causal and mask is None,
        num_key_value_groups=scene.heads // scene.num_kv_heads,
        head_dim=scene.dim,
        scaling=scene.scale,
        layer_idx=0,
        training=False,
    )
    kwargs: dict[str, Any] = {"scaling": options.get("scale")}
    kwargs |= {"s_aux": given["sinks"]} if "sinks" in given else {}

    def truth(tensors: Tensors) -> Tensors:
        rest = {"sinks": tensors.get("sinks")}
        out, _ = attend(*(tensors[name] for name in "qkv"), scale=scene.scale, visible=seen, **rest)
        return {"out": out.transpose(1, 2)}

    args = (module, given["q"], given["k"], given["v"], mask)
    shown = {} if mask is None else {"mask": mask}
    return Call(args=args, kwargs=_kept(kwargs, takes), given=given | shown, truth=truth)


CONVENTIONS: dict[str, Callable[[Scene, torch.Generator, Callable[[str], bool]], Call]] = {
    "sdpa": _sdpa,
    "flash": _flash,
    "flash_varlen": _varlen,
    "flash_kvcache": _kvcache,
    "flex": _flex,
    "hf": _hf,
}


def answers(like: str, call: Call, function: Callable) -> Iterator[tuple[str, Tensor]]:
    """What the function answers to the call, by name: the output, and the logsumexp where it was asked for."""
    answer = partial(function, *call.args)(**call.kwargs)
    is_tuple = isinstance(answer, tuple | list)
    yield "out", answer[0] if is_tuple else answer
    if is_tuple and like == "flash":
        yield "lse", answer[1]
