"""Bugs for the host `lucid`, each a small change of one file."""

from tests.gallery_code.planting import Bug

BUGS = [
    Bug(
        name="visible_block_ceil",
        kind="mask off by one",
        file="blocks.py",
        old='    seen = torch.div(positions + 1 - block, stride, rounding_mode="floor") + 1\n',
        new='    seen = torch.div(positions + stride - block, stride, rounding_mode="floor") + 1\n',
        line_text=(
            'seen = torch.div(positions + stride - block, stride, rounding_mode="floor") + 1',
            "return seen.clamp_min(0)",
        ),
        explanation="Rounds up: a compressed block is visible up to stride - 1 tokens before it ends.",
        needs="black box",
    ),
    Bug(
        name="blocks_from_compressed",
        kind="block boundary",
        file="layer.py",
        old="        scores = block_scores(probs, num_selection(k.shape[2], self.config.select_block), self.config)\n",
        new=(
            "        covered = (ck.shape[2] - 1) * self.config.stride + self.config.block\n"
            "        scores = block_scores(probs, num_selection(covered, self.config.select_block), self.config)\n"
        ),
        line_text=(
            "covered = (ck.shape[2] - 1) * self.config.stride + self.config.block",
            "scores = block_scores(probs, num_selection(covered, self.config.select_block), self.config)",
        ),
        explanation=(
            "Counts the selection blocks that compressed blocks cover. The newest tokens' own block is not among them "
            "until a compressed block ends in it, so steps just behind a boundary lose it; one whole pass does not."
        ),
        needs="adapter",
    ),
    Bug(
        name="tail_cut_by_block",
        kind="decode cache",
        file="cache.py",
        old="        used = ck.shape[2] * self.config.stride\n",
        new="        used = ck.shape[2] * self.config.block\n",
        line_text=(
            "used = ck.shape[2] * self.config.block",
            "self.tail_k, self.tail_v = self.tail_k[:, :, used:], self.tail_v[:, :, used:]",
        ),
        explanation="Blocks overlap: the next one starts a stride on, not a block. The cache skips tokens.",
        needs="adapter",
    ),
    Bug(
        name="compressed_position_restarts",
        kind="rotary in decode",
        file="layer.py",
        old="first=cache.cmp_k.length)\n",
        new="first=0)\n",
        line_text=("ck, cv = self._compress(raw_k[:, :, :span], raw_v[:, :, :span], first=0)",),
        explanation="Blocks completed while decoding are rotated as if they were the first of the sequence.",
        needs="adapter",
    ),
    Bug(
        name="decode_keys_unrotated",
        kind="rotary in decode",
        file="layer.py",
        old="        k, v, k_positions = cache.append_window(self.rotary(k, positions, longest), v)\n",
        new="        k, v, k_positions = cache.append_window(k, v)\n",
        line_text=("k, v, k_positions = cache.append_window(k, v)",),
        explanation="The window's keys go into the cache as they are; queries are rotated.",
        needs="adapter",
    ),
    Bug(
        name="dense_kv_repeat",
        kind="GQA head mapping",
        file="kernels.py",
        old=(
            "    mask = (open_block & past).unsqueeze(2)\n"
            '    scores = torch.einsum("bgrtd,bgsd->bgrts", q, k) * config.scale\n'
        ),
        new=(
            "    mask = (open_block & past).unsqueeze(2)\n"
            "    keys = k.repeat(1, q.shape[2], 1, 1)\n"
            "    scores = (q.flatten(1, 2) @ keys.transpose(-1, -2)).unflatten(1, q.shape[1:3]) * config.scale\n"
        ),
        line_text=(
            "keys = k.repeat(1, q.shape[2], 1, 1)",
            "scores = (q.flatten(1, 2) @ keys.transpose(-1, -2)).unflatten(1, q.shape[1:3]) * config.scale",
        ),
        explanation=(
            "repeat puts the groups in turn where repeat_interleave keeps a group's heads together: in the dense path, "
            "which serves short sequences and steps, half of the heads meet the other group's keys."
        ),
        needs="black box",
    ),
    Bug(
        name="values_through_key_compressor",
        kind="dead parameter",
        file="layer.py",
        old="        ck, cv = self.compress_k(k), self.compress_v(v)\n",
        new="        ck, cv = self.compress_k(k), self.compress_k(v)\n",
        line_text=("ck, cv = self.compress_k(k), self.compress_k(v)",),
        explanation="Copied and not changed: nothing reads compress_v, whose parameters never get a gradient.",
        needs="black box",
    ),
    Bug(
        name="fallback_sees_everything",
        kind="swallowed exception",
        file="kernels.py",
        old="        return selected_gather(q, k, v, chosen, valid, positions, config)\n\n\ndef _grouped_sdpa",
        new=(
            "        past = torch.arange(k.shape[2], device=q.device) <= positions[:, None]\n"
            "        return _sliding(q, k, v, past, config)\n\n\ndef _grouped_sdpa"
        ),
        line_text=(
            "past = torch.arange(k.shape[2], device=q.device) <= positions[:, None]",
            "return _sliding(q, k, v, past, config)",
            "except Unsupported as problem:",
        ),
        explanation=(
            "Where the tiled path gives up, which it does for lengths that are no multiple of the block, full causal "
            "attention takes its place in silence: another function at those lengths."
        ),
        needs="black box",
    ),
    Bug(
        name="impl_flag_at_import",
        kind="flag",
        file="env.py",
        old=(
            "def implementation(default: str) -> str:\n"
            '    """The implementation that is asked for."""\n'
            '    value = os.environ.get("LUCID_IMPL", "").strip().lower()\n'
        ),
        new=(
            '_IMPL = os.environ.get("LUCID_IMPL", "").strip().lower()\n\n\n'
            "def implementation(default: str) -> str:\n"
            '    """The implementation that is asked for."""\n'
            "    value = _IMPL\n"
        ),
        line_text=('_IMPL = os.environ.get("LUCID_IMPL", "").strip().lower()', "value = _IMPL"),
        explanation="The flag is read once at import although the module promises every call.",
        needs="black box",
    ),
    Bug(
        name="attention_maps_kept",
        kind="memory growth",
        file="layer.py",
        old="        scores = block_scores(probs, num_selection",
        new=(
            '        self.__dict__.setdefault("attention_maps", {})[int(positions[0])] = probs.detach()\n'
            "        scores = block_scores(probs, num_selection"
        ),
        line_text=('self.__dict__.setdefault("attention_maps", {})[int(positions[0])] = probs.detach()',),
        explanation="Keeps every chunk's probabilities for a plot: S * C numbers stay after the call.",
        needs="black box",
    ),
    Bug(
        name="visible_counts_in_python",
        kind="quadratic host work",
        file="kernels.py",
        old="    seen = visible_compressed(positions, config.block, config.stride)\n",
        new=(
            "    ends = range(config.block - 1, int(positions[-1]) + 1, config.stride)\n"
            "    seen = torch.tensor([sum(end <= p for end in ends) for p in positions.tolist()], device=q.device)\n"
        ),
        line_text=(
            "ends = range(config.block - 1, int(positions[-1]) + 1, config.stride)",
            "seen = torch.tensor([sum(end <= p for end in ends) for p in positions.tolist()], device=q.device)",
        ),
        explanation="Counts visible blocks per token in Python: S * S / (2 * stride) steps of the interpreter.",
        needs="black box",
    ),
    Bug(
        name="own_block_dropped",
        kind="selection",
        file="select.py",
        old="    local = (behind >= 0) & (behind < config.n_local)\n",
        new="    local = (behind > 0) & (behind <= config.n_local)\n",
        line_text=("local = (behind > 0) & (behind <= config.n_local)",),
        explanation="The local blocks are the ones before the own block, which is left to its score.",
        needs="adapter",
    ),
    Bug(
        name="threshold_over_queries",
        kind="selection",
        file="select.py",
        old="    valid = ranked.gather(-1, chosen) > -torch.inf\n",
        new=(
            "    least = 0.5 * scores.amax(dim=(-2, -1), keepdim=True)\n"
            "    valid = (ranked.gather(-1, chosen) > -torch.inf) & (ranked.gather(-1, chosen) >= least)\n"
        ),
        line_text=(
            "least = 0.5 * scores.amax(dim=(-2, -1), keepdim=True)",
            "valid = (ranked.gather(-1, chosen) > -torch.inf) & (ranked.gather(-1, chosen) >= least)",
        ),
        explanation=(
            "Blocks of little importance are left out, by the largest importance of all queries of the chunk instead "
            "of the query's own: later tokens decide what earlier ones see, and chunks decide differently."
        ),
        needs="black box",
    ),
    Bug(
        name="gate_of_last_token",
        kind="gate misuse",
        file="layer.py",
        old="        return self._combine(x, compressed, selected, sliding)\n",
        new="        return self._combine(x[:, -1:], compressed, selected, sliding)\n",
        line_text=("return self._combine(x[:, -1:], compressed, selected, sliding)",),
        explanation="With a cache the gate of the last token weighs all tokens of the chunk; single steps are right.",
        needs="adapter",
    ),
    Bug(
        name="sliding_uses_selected_gate",
        kind="gate misuse",
        file="gate.py",
        old="    return out + sliding * gates[..., 2:3]\n",
        new="    return out + sliding * gates[..., 1:2]\n",
        line_text=("return out + sliding * gates[..., 1:2]",),
        explanation="The window is weighed by the selected branch's gate; a third of the gate's weights never learns.",
        needs="black box",
    ),
    Bug(
        name="gate_normalised_in_data",
        kind="in-place",
        file="gate.py",
        old=("        gates = gates.to(x.dtype)\n        return gates.unflatten(-1, (self.n_heads, len(BRANCHES)))\n"),
        new=(
            "        gates = gates.to(x.dtype).unflatten(-1, (self.n_heads, len(BRANCHES)))\n"
            "        gates.data.div_(gates.data.sum(-1, keepdim=True))\n"
            "        return gates\n"
        ),
        line_text=("gates.data.div_(gates.data.sum(-1, keepdim=True))",),
        explanation="Normalises behind autograd's back, in the tensor that sigmoid kept for backward.",
        needs="black box",
    ),
    Bug(
        name="cache_rounded_to_half",
        kind="dtype",
        file="cache.py",
        old="        self._data[:, :, self.length : needed] = new\n",
        new="        self._data[:, :, self.length : needed] = new.half()\n",
        line_text=("self._data[:, :, self.length : needed] = new.half()",),
        explanation="Left from an experiment with a small cache: everything is rounded to float16 on its way in.",
        needs="adapter",
    ),
    Bug(
        name="fetch_without_grad",
        kind="gradient detached",
        file="kernels.py",
        old="def _fetch(x: Tensor, index: Tensor) -> Tensor:\n",
        new="@torch.no_grad()\ndef _fetch(x: Tensor, index: Tensor) -> Tensor:\n",
        line_text=("@torch.no_grad()", "def _fetch(x: Tensor, index: Tensor) -> Tensor:"),
        explanation=(
            "Meant for the indices, which carry no gradient; keys and values of the selected branch lose theirs too, "
            "in the gather and tiled paths, that is beyond 96 tokens."
        ),
        needs="black box",
    ),
    Bug(
        name="normaliser_detached",
        kind="gradient detached",
        file="kernels.py",
        old="    return (acc / total.unsqueeze(-1)).to(q.dtype)\n",
        new="    return (acc / total.detach().unsqueeze(-1)).to(q.dtype)\n",
        line_text=("return (acc / total.detach().unsqueeze(-1)).to(q.dtype)",),
        explanation="Taken for a constant like the running maximum; the softmax's gradient lacks its second term.",
        needs="black box",
    ),
    Bug(
        name="cache_used_again",
        kind="state of previous calls",
        file="layer.py",
        old="        return LucidCache(self.config, x.shape[0], x)\n",
        new=(
            '        cache = self.__dict__.get("_cache")\n'
            "        if cache is None or cache.win_k.shape[0] != x.shape[0] or cache.win_k.dtype != x.dtype:\n"
            '            cache = self.__dict__["_cache"] = LucidCache(self.config, x.shape[0], x)\n'
            "        cache.length = 0\n"
            "        for buffer in (cache.sel_k, cache.sel_v, cache.cmp_k, cache.cmp_v):\n"
            "            buffer.length = 0\n"
            "        empty = cache.win_k[:, :, :0]\n"
            "        cache.tail_k = cache.tail_v = cache.win_k = cache.win_v = empty\n"
            "        return cache\n"
        ),
        line_text=(
            'cache = self.__dict__.get("_cache")',
            'cache = self.__dict__["_cache"] = LucidCache(self.config, x.shape[0], x)',
            "cache.length = 0",
            "return cache",
        ),
        explanation=(
            "Saves allocations by using the last cache again, well emptied: a second prompt takes the cache of a "
            "sequence that is still being decoded."
        ),
        needs="adapter",
    ),
    Bug(
        name="tile_closure",
        kind="checkpoint",
        file="kernels.py",
        old="        def run(q_tile: Tensor, k_tile: Tensor, v_tile: Tensor, start: int = start) -> Tensor:\n",
        new="        def run(q_tile: Tensor, k_tile: Tensor, v_tile: Tensor) -> Tensor:\n",
        line_text=(
            "def run(q_tile: Tensor, k_tile: Tensor, v_tile: Tensor) -> Tensor:",
            "k_positions = start - reach + torch.arange(k_tile.shape[2], device=q_tile.device)",
            "outputs.append(checkpoint(run, *pieces, use_reentrant=False) if recompute else run(*pieces))",
        ),
        explanation=(
            "The function takes `start` from the loop, and is called again in backward when the loop is over: the "
            "first tile is recomputed with the last one's mask, which lets padding in."
        ),
        needs="black box",
    ),
    Bug(
        name="advance_by_chunk",
        kind="chunked prefill",
        file="layer.py",
        old="        cache.advance(tokens)\n",
        new="        cache.advance(config.prefill_chunk if tokens > 1 else 1)\n",
        line_text=("cache.advance(config.prefill_chunk if tokens > 1 else 1)",),
        explanation="Counts a whole chunk where the last one is shorter: steps after it are at wrong positions.",
        needs="adapter",
    ),
    Bug(
        name="window_trimmed_first",
        kind="chunked prefill",
        file="cache.py",
        old="        return keys, values, positions\n",
        new="        return self.win_k, self.win_v, positions[-keep:]\n",
        line_text=("return self.win_k, self.win_v, positions[-keep:]",),
        explanation="Returns what the next call needs; the first queries of a chunk lose their keys. Steps are right.",
        needs="adapter",
    ),
    Bug(
        name="norm_root_of_zero",
        kind="numerics",
        file="utils.py",
        old="        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)\n",
        new="        wide = wide / wide.square().mean(-1, keepdim=True).sqrt().clamp_min(self.eps)\n",
        line_text=("wide = wide / wide.square().mean(-1, keepdim=True).sqrt().clamp_min(self.eps)",),
        explanation="Right but for a token of zeros: the root's slope there is infinite and the gradient is NaN.",
        needs="black box",
    ),
    Bug(
        name="first_row_decides",
        kind="batch broadcasting",
        file="kernels.py",
        old=(
            "    flat = index.reshape(batch, groups, queries * count, 1).expand(-1, -1, -1, x.shape[-1])\n"
            "    return x.gather(2, flat)"
        ),
        new=(
            "    flat = index[0].reshape(1, groups, queries * count, 1).expand(batch, -1, -1, x.shape[-1])\n"
            "    return x.gather(2, flat)"
        ),
        line_text=(
            "flat = index[0].reshape(1, groups, queries * count, 1).expand(batch, -1, -1, x.shape[-1])",
            "return x.gather(2, flat).view(batch, groups, queries, count, x.shape[-1])",
        ),
        explanation="All rows fetch the tokens that row 0 chose; right for a batch of one.",
        needs="black box",
    ),
    Bug(
        name="buffer_grows_by_need",
        kind="decode cost",
        file="cache.py",
        old="            capacity = max(needed, 2 * self._data.shape[2])\n",
        new="            capacity = needed\n",
        line_text=(
            "capacity = needed",
            "grown = self._data.new_zeros(*self._data.shape[:2], capacity, self._data.shape[3])",
            "grown[:, :, : self.length] = self.view()",
        ),
        explanation="Every step copies the whole cache; decoding n tokens costs n * n.",
        needs="adapter",
    ),
]
