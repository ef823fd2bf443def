"""Bugs planted in cobalt."""

from tests.gallery_code.planting import Bug

BUGS = [
    Bug(
        name="block_seen_after_first_stride",
        kind="causality of compressed blocks",
        file="blocks.py",
        old="* cfg.stride + cfg.block_len - 1\n",
        new="* cfg.stride + cfg.stride - 1\n",
        line_text=(
            "last = torch.arange(num_blocks, device=positions.device) * cfg.stride + cfg.stride - 1",
            "return last <= positions[:, None]",
        ),
        explanation="A block is shown once its first stride is there: queries see tokens that come later in it.",
        needs="black box",
    ),
    Bug(
        name="future_blocks_count_as_local",
        kind="forced blocks without upper bound",
        file="blocks.py",
        old="""    local = (number > own - cfg.local_blocks) & (number <= own)
    forced = (number < cfg.first_blocks) | local
    ranked = scores + cfg.tie_bias * number
    ranked = ranked.masked_fill(forced, torch.inf).masked_fill(number > own, -torch.inf)
""",
        new="""    local = number > own - cfg.local_blocks
    forced = (number < cfg.first_blocks) | local
    ranked = scores + cfg.tie_bias * number
    ranked = ranked.masked_fill(number > own, -torch.inf).masked_fill(forced, torch.inf)
""",
        line_text=(
            "local = number > own - cfg.local_blocks",
            "ranked = ranked.masked_fill(number > own, -torch.inf).masked_fill(forced, torch.inf)",
            "picked = ranked.topk(min(cfg.top_n, scores.shape[-1]), dim=-1)",
        ),
        explanation=(
            "Blocks after the query are forced; cut to nothing, they take places, the more the longer the call."
        ),
        needs="black box",
    ),
    Bug(
        name="partial_block_never_chosen",
        kind="length no multiple of the block",
        file="blocks.py",
        old="    num_select = cfg.num_select(total)\n",
        new="    num_select = max(1, total // cfg.select_block)\n",
        line_text=("num_select = max(1, total // cfg.select_block)",),
        explanation="The last block is no candidate until it is full, so that a query may lack its own block.",
        needs="black box",
    ),
    Bug(
        name="range_end_counts",
        kind="off by one in the gathered ranges",
        file="selected.py",
        old="        seen = (index < end).flatten(-2)\n",
        new="        seen = (index <= end).flatten(-2)\n",
        line_text=("seen = (index <= end).flatten(-2)",),
        explanation=(
            "A cut range shows the token after it; by gather alone, which serves more than 96 tokens and decoding."
        ),
        needs="black box",
    ),
    Bug(
        name="hidden_blocks_averaged",
        kind="rows that see nothing",
        file="layers.py",
        old=".masked_fill(~mask, -torch.inf)\n    peak",
        new=".masked_fill(~mask, -1e4)\n    peak",
        line_text=("wide = scores.to(wide_dtype(scores)).masked_fill(~mask, -1e4)",),
        explanation="Queries before the end of the first block get the mean of all blocks, which lie in their future.",
        needs="black box",
    ),
    Bug(
        name="unseen_rows_not_zeroed",
        kind="rows that see nothing, behind a flag",
        file="layers.py",
        old="""    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~seen)
    return out.masked_fill(~seen, 0.0)
""",
        new="""    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~seen)
""",
        line_text=("return F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~seen)",),
        explanation="With COBALT_COMPRESSED=sdpa queries that see no block attend to all of them, the future included.",
        needs="black box",
    ),
    Bug(
        name="masks_tiled_keys_interleaved",
        kind="head mapping",
        file="selected.py",
        old="    mask = ranges_to_mask(ranges, k.shape[1], cfg).repeat_interleave(heads // k.shape[2], dim=1)\n",
        new="    mask = ranges_to_mask(ranges, k.shape[1], cfg).repeat(1, heads // k.shape[2], 1, 1)\n",
        line_text=(
            "mask = ranges_to_mask(ranges, k.shape[1], cfg).repeat(1, heads // k.shape[2], 1, 1)",
            "return sdpa(q.transpose(1, 2), per_head(k, heads), per_head(v, heads), mask).transpose(1, 2)",
        ),
        explanation="By the mask heads read the blocks that another group chose; gathered and decoded they do not.",
        needs="black box",
    ),
    Bug(
        name="window_keys_not_rotated",
        kind="positions of one branch",
        file="attention.py",
        old="        k, base = apply_rope(k, *ctx.rope), 0\n",
        new="        base = 0\n",
        line_text=(
            "base = 0",
            "k, v = self._keys_values(self.kv_sliding, x)",
            "sliding = sliding_attention(q, k, v, ctx.positions, base, cfg)",
        ),
        explanation="Queries are rotated and the window's keys are not: scores go with where, not with how far.",
        needs="black box",
    ),
    Bug(
        name="banded_span_without_history",
        kind="chunks of queries after a cache",
        file="dense.py",
        old="before + low - cfg.window + 1), before + high)\n",
        new="before + low - cfg.window + 1), high)\n",
        line_text=("span = slice(max(0, before + low - cfg.window + 1), high)",),
        explanation=(
            "After a cache the newest keys of a chunk are cut off: prompts longer than prefill_chunk, no others."
        ),
        needs="adapter",
    ),
    Bug(
        name="mask_workspace_not_cleared",
        kind="workspace reused",
        file="selected.py",
        old="""\
    blocks = torch.zeros(batch, groups, queries, cfg.num_select(total) + 1, dtype=torch.bool, device=ranges.device)
    spare = torch.full_like(start, blocks.shape[-1] - 1)
    blocks = blocks.scatter(""",
        new="""    shape = (batch, groups, queries, cfg.num_select(total) + 1)
    workspaces = ranges_to_mask.__dict__
    key = f"{shape} {ranges.device}"
    if key not in workspaces:
        workspaces[key] = torch.zeros(shape, dtype=torch.bool, device=ranges.device)
    blocks = workspaces[key]
    spare = torch.full_like(start, blocks.shape[-1] - 1)
    blocks = blocks.scatter_(""",
        line_text=(
            "workspaces = ranges_to_mask.__dict__",
            "if key not in workspaces:",
            "workspaces[key] = torch.zeros(shape, dtype=torch.bool, device=ranges.device)",
            "blocks = workspaces[key]",
            "blocks = blocks.scatter_(-1, torch.where(end > start, start // cfg.select_block, spare), True)",
        ),
        explanation=(
            "The mask of blocks is allocated once for each shape and never cleared: choices of earlier calls stay."
        ),
        needs="black box",
    ),
    Bug(
        name="mask_of_floats_falls_back",
        kind="fallback taken at every call",
        file="selected.py",
        old="    return tokens & (torch.arange(total, device=ranges.device) < last)\n",
        new="    return (tokens & (torch.arange(total, device=ranges.device) < last)).float()\n",
        line_text=("return (tokens & (torch.arange(total, device=ranges.device) < last)).float()",),
        explanation="The mask of floats cannot be or-ed, the error is caught, and a Python loop over queries answers.",
        needs="black box",
    ),
    Bug(
        name="short_sequences_uninitialized",
        kind="uninitialized memory",
        file="dense.py",
        old="    if not k.shape[1]:\n        return torch.zeros_like(q)\n",
        new="    if not k.shape[1]:\n        return torch.empty_like(q)\n",
        line_text=("return torch.empty_like(q)",),
        explanation="Up to the first complete block the compressed branch returns whatever lay in memory.",
        needs="black box",
    ),
    Bug(
        name="positions_in_model_dtype",
        kind="dtype of positions",
        file="layers.py",
        old="    angle = (positions.to(dtype) / scale)[:, None] * frequency\n",
        new="    angle = (positions.to(like.dtype) / scale)[:, None] * frequency\n",
        line_text=(
            "angle = (positions.to(like.dtype) / scale)[:, None] * frequency",
            "return angle.cos(), angle.sin()",
        ),
        explanation="bfloat16 has no odd numbers beyond 256: from there on neighbours, in pairs, are turned alike.",
        needs="black box",
    ),
    Bug(
        name="window_mask_at_every_length",
        kind="memory and time",
        file="dense.py",
        old="""        name = "mask" if k.shape[1] <= cfg.dense_up_to else "banded"\n""",
        new="""        name = "mask" if cfg.window <= cfg.dense_up_to else "banded"\n""",
        line_text=(
            'name = "mask" if cfg.window <= cfg.dense_up_to else "banded"',
            "mask = window_mask(positions, base + torch.arange(k.shape[1], device=k.device), cfg.window)",
            "return sdpa(q.transpose(1, 2), per_head(k, heads), per_head(v, heads), mask).transpose(1, 2)",
            "distance = positions[:, None] - key_positions",
        ),
        explanation=(
            "The wrong size is compared: long sequences get a mask of all pairs in every layer, for 16 tokens each."
        ),
        needs="black box",
    ),
    Bug(
        name="rows_joined_when_ids_agree",
        kind="packed documents, more than one row",
        file="packing.py",
        old="    begins[:, 0] = True\n",
        new="    begins[0, 0] = True\n",
        line_text=("begins[0, 0] = True", "return (flat.cumsum(0) - 1).view(batch, length)"),
        explanation=(
            "A row begins no document but the first: the next row's first document goes on with the row before."
        ),
        needs="black box",
    ),
    Bug(
        name="normaliser_detached",
        kind="gradient of the softmax",
        file="layers.py",
        old="    return weight / weight.sum(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)\n",
        new="    return weight / weight.sum(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny).detach()\n",
        line_text=("return weight / weight.sum(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny).detach()",),
        explanation="The sum is taken for a constant, as the peak may be: scores get gradients of an unnormalized exp.",
        needs="black box",
    ),
    Bug(
        name="recompute_drops_others",
        kind="recompute and dropout, behind a flag",
        file="model.py",
        old="                x = checkpoint(block, x, ctx, use_reentrant=False)\n",
        new="                x = checkpoint(block, x, ctx, use_reentrant=False, preserve_rng_state=False)\n",
        line_text=("x = checkpoint(block, x, ctx, use_reentrant=False, preserve_rng_state=False)",),
        explanation="With COBALT_CHECKPOINT=1 and dropout the backward drops other channels than the forward did.",
        needs="adapter",
    ),
    Bug(
        name="every_layer_starts_alike",
        kind="initialization",
        file="model.py",
        old="""\
            nn.init.normal_(child.weight, std=cfg.std / (2 * cfg.layers) ** 0.5 if residual else cfg.std)
""",
        new="""            std = cfg.std / (2 * cfg.layers) ** 0.5 if residual else cfg.std
            nn.init.normal_(child.weight, std=std, generator=torch.Generator().manual_seed(0))
""",
        line_text=("nn.init.normal_(child.weight, std=std, generator=torch.Generator().manual_seed(0))",),
        explanation=(
            "A new generator for each weight: those of one shape are equal in all branches and layers, any seed."
        ),
        needs="black box",
    ),
    Bug(
        name="block_positions_restart",
        kind="positions of compressed keys in decoding",
        file="attention.py",
        old="    starts = torch.arange(first, after, device=like.device) * cfg.stride\n",
        new="    starts = torch.arange(after - first, device=like.device) * cfg.stride\n",
        line_text=("starts = torch.arange(after - first, device=like.device) * cfg.stride",),
        explanation="Blocks that are completed after a cache are rotated as if they were the sequence's first ones.",
        needs="adapter",
    ),
    Bug(
        name="window_one_short_in_decoding",
        kind="window of a cache, off by one",
        file="cache.py",
        old="        base = max(0, self.win_k.length - self.cfg.window + 1)\n",
        new="        base = max(0, self.win_k.length - self.cfg.window + 2)\n",
        line_text=("base = max(0, self.win_k.length - self.cfg.window + 2)",),
        explanation="The first of the new tokens lacks the oldest token of its window; a whole pass shows it.",
        needs="adapter",
    ),
    Bug(
        name="new_block_hidden_for_a_step",
        kind="compressed cache one step late",
        file="attention.py",
        old="        return (k, v) if cache is None else cache.add_compressed(k, v)\n",
        new="""        if cache is None:
            return k, v
        keys, values = cache.add_compressed(k, v)
        done = ctx.first_block or keys.shape[1]
        return keys[:, :done], values[:, :done]
""",
        line_text=(
            "done = ctx.first_block or keys.shape[1]",
            "return keys[:, :done], values[:, :done]",
        ),
        explanation="The step that completes a block does not read it yet; the next one does.",
        needs="adapter",
    ),
    Bug(
        name="growth_copies_the_first_capacity",
        kind="cache growth",
        file="cache.py",
        old="            grown[:, : self.length] = self.data[:, : self.length]\n",
        new="""            kept = min(self.length, self.capacity)
            grown[:, :kept] = self.data[:, :kept]
""",
        line_text=("kept = min(self.length, self.capacity)", "grown[:, :kept] = self.data[:, :kept]"),
        explanation="The first time it grows all is copied, the second time 32 tokens: the rest is uninitialized.",
        needs="adapter",
    ),
    Bug(
        name="blocks_kept_after_crop",
        kind="crop of one buffer forgotten",
        file="cache.py",
        old="""            raw.crop(length)
        for compressed in (self.cmp_k, self.cmp_v):
            compressed.crop(blocks)
""",
        new="""            raw.crop(length)
""",
        line_text=("def crop(self, length: int) -> None:", "blocks = cfg.num_blocks(length)", "raw.crop(length)"),
        explanation=(
            "Compressed tokens of what was taken back stay and are read; after more than a few tokens a step raises."
        ),
        needs="adapter",
    ),
    Bug(
        name="window_not_cropped",
        kind="rolling window after a crop",
        file="cache.py",
        old="""        for ring in (self.win_k, self.win_v):
            ring.crop(length, max(0, length - cfg.window + 1))
        for ring in (self.pending_k""",
        new="""        for ring in (self.pending_k""",
        line_text=(
            "def crop(self, length: int) -> None:",
            "for ring in (self.pending_k, self.pending_v):",
            "base = max(0, self.win_k.length - self.cfg.window + 1)",
        ),
        explanation="The window goes on after the tokens that were taken back: queries see these instead of their own.",
        needs="adapter",
    ),
    Bug(
        name="pending_not_reordered",
        kind="beam reorder forgets a buffer",
        file="cache.py",
        old="self.raw_k, self.raw_v, self.cmp_k, self.cmp_v, self.pending_k, self.pending_v, self.win_k, self.win_v\n",
        new="self.raw_k, self.raw_v, self.cmp_k, self.cmp_v, self.win_k, self.win_v\n",
        line_text=("self.raw_k, self.raw_v, self.cmp_k, self.cmp_v, self.win_k, self.win_v",),
        explanation="Blocks that are completed after a reorder are made of another row's tokens in part.",
        needs="adapter",
    ),
    Bug(
        name="second_prompt_takes_the_cache",
        kind="one cache for all prompts",
        file="model.py",
        old="        cache = self.new_cache() if cache is None else cache\n        size",
        new="""        if cache is None:
            cache = self.__dict__.setdefault("_cache", self.new_cache())
            cache.reset()
        size""",
        line_text=('cache = self.__dict__.setdefault("_cache", self.new_cache())', "cache.reset()"),
        explanation=(
            "The cache is kept for the next prompt, whose prefill wipes that of a sequence still being decoded."
        ),
        needs="adapter",
    ),
    Bug(
        name="storage_grows_by_one",
        kind="cache copied at every token",
        file="cache.py",
        old="            grown = x.new_empty(x.shape[0], max(2 * self.data.shape[1], end), *x.shape[2:])\n",
        new="            grown = x.new_empty(x.shape[0], end, *x.shape[2:])\n",
        line_text=(
            "grown = x.new_empty(x.shape[0], end, *x.shape[2:])",
            "grown[:, : self.length] = self.data[:, : self.length]",
        ),
        explanation="Full storage is made one token longer: every step allocates and copies all raw tokens again.",
        needs="adapter",
    ),
    Bug(
        name="reads_wait_for_the_device",
        kind="host waits at every token",
        file="cache.py",
        old="""        self.reads["selected"] = self.reads["selected"] + spans
        self.reads["sliding"] = self.reads["sliding"] + (positions + 1).clamp(max=self.cfg.window).sum()
""",
        new="""        self.reads["selected"] += spans.item()
        self.reads["sliding"] += sum(min(p + 1, self.cfg.window) for p in positions.tolist())
""",
        line_text=(
            'self.reads["selected"] += spans.item()',
            'self.reads["sliding"] += sum(min(p + 1, self.cfg.window) for p in positions.tolist())',
        ),
        explanation="Counters of reads are fetched twice for each layer and token, and the host waits each time.",
        needs="adapter",
    ),
    Bug(
        name="loss_summed_in_bfloat16",
        kind="dtype of the loss",
        file="model.py",
        old="        logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))\n",
        new="        logits = logits.flatten(0, 1)\n",
        line_text=(
            "logits = logits.flatten(0, 1)",
            'total = F.cross_entropy(logits, wanted.flatten(), ignore_index=self.ignore_index, reduction="sum")',
        ),
        explanation="In bfloat16 the sum over all tokens has eight bits: the loss moves in steps of a percent or none.",
        needs="adapter",
    ),
    Bug(
        name="head_detached",
        kind="detached gradient",
        file="model.py",
        old="        return F.linear(hidden, self.embed.weight)\n",
        new="        return F.linear(hidden, self.embed.weight.data)\n",
        line_text=("return F.linear(hidden, self.embed.weight.data)",),
        explanation="Tied embeddings are trained as inputs alone: ids that are predicted and never read do not learn.",
        needs="adapter",
    ),
    Bug(
        name="schedule_counts_micro_batches",
        kind="scheduler stepped per micro-batch",
        file="train.py",
        old="            self.ema.update(model)\n        self.done += 1\n",
        new="            self.ema.update(model)\n        self.done += len(batches)\n",
        line_text=("self.done += len(batches)",),
        explanation="Warm-up and decay run as many times faster as there are micro-batches in a step.",
        needs="adapter",
    ),
    Bug(
        name="divided_by_micro_batches_too",
        kind="accumulation divides twice",
        file="train.py",
        old="            loss.backward()\n",
        new="            (loss / len(batches)).backward()\n",
        line_text=("(loss / len(batches)).backward()",),
        explanation="The loss is divided by all tokens already: gradients shrink with the number of micro-batches.",
        needs="adapter",
    ),
    Bug(
        name="clips_one_group",
        kind="clipping",
        file="train.py",
        old="        norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)\n",
        new="""        norm = nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], cfg.clip)\n""",
        line_text=('norm = nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], cfg.clip)',),
        explanation="Only weights that decay are clipped: where the norm is large, embeddings and norms weigh more.",
        needs="adapter",
    ),
    Bug(
        name="embeddings_in_no_group",
        kind="parameters that are not optimized",
        file="train.py",
        old="""        {"params": [p for p in params if id(p) not in linear], "weight_decay": 0.0},\n""",
        new="""        {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},\n""",
        line_text=('{"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},',),
        explanation=(
            "Matrices that are no linear layer's, the embedding and places in a block, are in no group and stay."
        ),
        needs="adapter",
    ),
    Bug(
        name="snapshot_not_copied",
        kind="aliasing of a snapshot",
        file="train.py",
        old="""        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
""",
        new="""        return dict(
            {
                "model": self.model.state_dict(),
                "optimizer": copy.deepcopy(self.optimizer.state_dict()),
""",
        line_text=("return dict(", '"model": self.model.state_dict(),'),
        explanation=(
            "The parameters in a snapshot are the model's own and go on training; what is restored is the present."
        ),
        needs="adapter",
    ),
    Bug(
        name="history_keeps_graphs",
        kind="memory growth",
        file="train.py",
        old="            loss.backward()\n            total += loss.item()\n",
        new="            loss.backward(retain_graph=True)\n            total = total + loss\n",
        line_text=(
            "loss.backward(retain_graph=True)",
            "total = total + loss",
            'self.history.append({"loss": total, "norm": float(norm), "lr": rate})',
        ),
        explanation="Losses in the history are tensors, and their graphs are retained: every step's activations stay.",
        needs="adapter",
    ),
]
