"""Odd variants of cobalt that are right."""

from tests.gallery_code.planting import Variant

VARIANTS = [
    Variant(
        name="forced_after_hidden",
        file="blocks.py",
        old="    ranked = ranked.masked_fill(forced, torch.inf).masked_fill(number > own, -torch.inf)\n",
        new="    ranked = ranked.masked_fill(number > own, -torch.inf).masked_fill(forced, torch.inf)\n",
        explanation="No forced block is after the query's own, so that the order of the two fills does not matter.",
    ),
    Variant(
        name="embedding_scaled_in_place",
        file="model.py",
        old="        return self.drop(self.embed(ids) * self.cfg.dim**0.5)\n",
        new="        return self.drop(self.embed(ids).mul_(self.cfg.dim**0.5))\n",
        explanation="What is looked up is a copy, and its backward needs no values: the table is as it was.",
    ),
    Variant(
        name="overlap_kept",
        file="blocks.py",
        old="""    part = (high - low).clamp(min=0).to(like.dtype) / cfg.block_len
    return index.clamp(max=num_blocks - 1), part.masked_fill(index >= num_blocks, 0)
""",
        new="""    kept = overlap.__dict__.setdefault("kept", {})
    key = (num_blocks, num_select, cfg.stride, cfg.block_len, cfg.select_block, like.dtype, like.device)
    if key not in kept:
        part = (high - low).clamp(min=0).to(like.dtype) / cfg.block_len
        while len(kept) >= 8:
            del kept[next(iter(kept))]
        kept[key] = index.clamp(max=num_blocks - 1), part.masked_fill(index >= num_blocks, 0)
    return kept[key]
""",
        explanation=(
            "The last eight matrices are kept by all that they depend on; nothing writes to them or needs a gradient."
        ),
    ),
    Variant(
        name="odd_sizes",
        file="factory.py",
        old="    return CobaltDecoder(replace(CobaltConfig(), **changes))\n",
        new="""    odd = CobaltConfig(query_chunk=7, prefill_chunk=11, dense_up_to=0, compressed_impl="sdpa")
    return CobaltDecoder(replace(odd, **changes))
""",
        explanation=(
            "Chunks of seven queries, prompts in pieces of eleven, never a mask for all tokens: the same numbers."
        ),
    ),
    Variant(
        name="softmax_by_torch",
        file="layers.py",
        old="""    wide = scores.to(wide_dtype(scores)).masked_fill(~mask, -torch.inf)
    peak = wide.amax(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).min).detach()
    weight = torch.exp(wide - peak)
    return weight / weight.sum(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
""",
        new="""    wide = scores.to(wide_dtype(scores))
    return wide.masked_fill(~mask, torch.finfo(wide.dtype).min).softmax(-1) * mask
""",
        explanation="Rows that see nothing are uniform at first and then multiplied by zero, gradients included.",
    ),
    Variant(
        name="compressor_starts_as_mean",
        file="model.py",
        old="            if child.bias is not None:\n",
        new="""            if name.endswith(("compress_k.outer", "compress_v.outer")):
                nn.init.zeros_(child.weight)
            if child.bias is not None:
""",
        explanation=(
            "The MLP's last layer is zero at first, so that a block starts as its mean; one zero in a row learns."
        ),
    ),
    Variant(
        name="window_mask_by_sorting",
        file="dense.py",
        old="""    distance = positions[:, None] - key_positions
    return (distance >= 0) & (distance < window)
""",
        new="""    later = key_positions > positions[:, None]
    gone = key_positions + window <= positions[:, None]
    return ~(later | gone)
""",
        explanation="What is hidden is said instead of what is seen; the same mask.",
    ),
]
