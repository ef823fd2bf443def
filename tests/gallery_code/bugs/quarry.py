"""Bugs planted in quarry."""

from tests.gallery_code.planting import Bug

BUGS = [
    Bug(
        name="queries_rotated_from_zero",
        kind="positions",
        file="latent.py",
        old="        queries = self._queries(x, offset)\n",
        new="        queries = self._queries(x, 0)\n",
        line_text=("queries = self._queries(x, 0)",),
        explanation="Queries after a cache are rotated as if they were the first tokens; keys are not.",
        needs="adapter",
    ),
    Bug(
        name="keys_rotated_by_new_length",
        kind="positions",
        file="latent.py",
        old="        cache.append(*self._tokens(x, offset))\n",
        new="        cache.append(*self._tokens(x, offset + x.shape[1] - 1))\n",
        line_text=("cache.append(*self._tokens(x, offset + x.shape[1] - 1))",),
        explanation="Keys of a piece are rotated from its last position on: right for single tokens, not for prompts.",
        needs="adapter",
    ),
    Bug(
        name="index_scores_in_bfloat16",
        kind="dtype of selection",
        file="indexer.py",
        old="        best, index = score.sort(dim=-1, descending=True, stable=True)\n",
        new="        best, index = score.bfloat16().sort(dim=-1, descending=True, stable=True)\n",
        line_text=("best, index = score.bfloat16().sort(dim=-1, descending=True, stable=True)",),
        explanation="Tokens are ordered by scores of three digits; of near ones the wrong ones are selected.",
        needs="black box",
    ),
    Bug(
        name="probabilities_saved_in_half",
        kind="dtype of saved tensors",
        file="fused.py",
        old="        ctx.save_for_backward(q, keys, values, probs, out, temperature)\n",
        new="        ctx.save_for_backward(q, keys, values, probs.bfloat16(), out, temperature)\n",
        line_text=("ctx.save_for_backward(q, keys, values, probs.bfloat16(), out, temperature)",),
        explanation="Backward has probabilities in bfloat16; gradients are off by parts in a thousand.",
        needs="black box",
    ),
    Bug(
        name="rotated_keys_cached_in_bfloat16",
        kind="dtype of cache",
        file="cache.py",
        old="        self.rope_key = like.new_zeros(batch, cfg.capacity, cfg.rope_dim)\n",
        new="        self.rope_key = like.new_zeros(batch, cfg.capacity, cfg.rope_dim, dtype=torch.bfloat16)\n",
        line_text=("self.rope_key = like.new_zeros(batch, cfg.capacity, cfg.rope_dim, dtype=torch.bfloat16)",),
        explanation="The cache rounds rotated keys to bfloat16, whatever the dtype of the model.",
        needs="adapter",
    ),
    Bug(
        name="next_token_selectable",
        kind="mask",
        file="indexer.py",
        old=".masked_fill(position > own, -torch.inf)\n",
        new=".masked_fill(position > own + 1, -torch.inf)\n",
        line_text=("score = score.masked_fill(recent, torch.inf).masked_fill(position > own + 1, -torch.inf)",),
        explanation="A query may select the token after it, except the last query of a chunk.",
        needs="black box",
    ),
    Bug(
        name="pieces_see_their_own_length",
        kind="chunk boundary",
        file="latent.py",
        old="            seen = tuple(item[:, : offset + end] for item in tokens)\n",
        new="            seen = tuple(item[:, : max(offset, end)] for item in tokens)\n",
        line_text=("seen = tuple(item[:, : max(offset, end)] for item in tokens)",),
        explanation="With a cache the bound on keys is that of the cache before: the piece itself is left out.",
        needs="adapter",
    ),
    Bug(
        name="ties_as_they_come",
        kind="selection",
        file="indexer.py",
        old="        best, index = score.sort(dim=-1, descending=True, stable=True)\n",
        new="        best, index = score.topk(min(cfg.topk, score.shape[-1]), dim=-1)\n",
        line_text=("best, index = score.topk(min(cfg.topk, score.shape[-1]), dim=-1)",),
        explanation="topk orders equal scores (zeros of the relu) as it likes, by length; sorting was stable.",
        needs="black box",
    ),
    Bug(
        name="quarter_of_the_length",
        kind="selection",
        file="indexer.py",
        old="        count = min(cfg.topk, keys.shape[1])\n",
        new="        count = min(cfg.topk, max(cfg.window, keys.shape[1] // 4), keys.shape[1])\n",
        line_text=("count = min(cfg.topk, max(cfg.window, keys.shape[1] // 4), keys.shape[1])",),
        explanation="How many tokens are selected depends on where a chunk ends, not on the query.",
        needs="black box",
    ),
    Bug(
        name="empty_slots_hold_oneself",
        kind="selection",
        file="indexer.py",
        old="        return index[..., :count], best[..., :count] > -torch.inf\n",
        new="        return index[..., :count].minimum(own), torch.ones_like(index[..., :count], dtype=torch.bool)\n",
        line_text=("return index[..., :count].minimum(own), torch.ones_like(index[..., :count], dtype=torch.bool)",),
        explanation="Slots without a visible token are filled with the query's own, which then counts many times.",
        needs="black box",
    ),
    Bug(
        name="capacity_shared_by_rows",
        kind="batch mixing",
        file="moe.py",
        old="        rank = asked.cumsum(1)\n",
        new="        rank = asked.flatten(0, 1).cumsum(0).view_as(asked)\n",
        line_text=("rank = asked.flatten(0, 1).cumsum(0).view_as(asked)",),
        explanation="Ranks go on from row to row: later rows of a batch lose tokens to earlier ones.",
        needs="black box",
    ),
    Bug(
        name="capacity_of_whole_length",
        kind="length dependence",
        file="moe.py",
        old="        seen = torch.arange(start + 1, start + count + 1, device=device)\n",
        new="        seen = torch.full((count,), start + count, device=device)\n",
        line_text=("seen = torch.full((count,), start + count, device=device)",),
        explanation="An expert's capacity follows from the whole length: early tokens depend on how many come later.",
        needs="black box",
    ),
    Bug(
        name="growth_forgets_last_token",
        kind="cache growth",
        file="cache.py",
        old="            new[:, : self.length] = old[:, : self.length]\n",
        new="            new[:, : self.length - 1] = old[:, : self.length - 1]\n",
        line_text=("new[:, : self.length - 1] = old[:, : self.length - 1]",),
        explanation="When the cache grows its last token is not copied.",
        needs="adapter",
    ),
    Bug(
        name="expert_counts_not_kept",
        kind="decode state, not advanced",
        file="model.py",
        old="""        mixed, _, counts = self.experts(self.norm_experts(x), start, cache.expert_counts)
        cache.expert_counts = counts
""",
        new="""        mixed, _, _ = self.experts(self.norm_experts(x), start, cache.expert_counts)
""",
        line_text=("mixed, _, _ = self.experts(self.norm_experts(x), start, cache.expert_counts)",),
        explanation="Experts forget what they have taken with every piece, and drop nothing in decoding.",
        needs="adapter",
    ),
    Bug(
        name="one_cache_for_all_layers",
        kind="aliasing",
        file="cache.py",
        old="        return cls([LatentCache(cfg, like) for _ in range(cfg.n_layers)])\n",
        new="        return cls([LatentCache(cfg, like)] * cfg.n_layers)\n",
        line_text=("return cls([LatentCache(cfg, like)] * cfg.n_layers)",),
        explanation="The list holds one cache several times: layers append to each other's tokens.",
        needs="adapter",
    ),
    Bug(
        name="absorbed_scale",
        kind="scale",
        file="latent.py",
        old="q, keys, values, bias.flatten(0, 1), valid.flatten(0, 1), temperature, cfg.head_dim**-0.5\n",
        new="q, keys, values, bias.flatten(0, 1), valid.flatten(0, 1), temperature, q.shape[-1] ** -0.5\n",
        line_text=("q, keys, values, bias.flatten(0, 1), valid.flatten(0, 1), temperature, q.shape[-1] ** -0.5",),
        explanation="Scores are scaled by the width of what is multiplied, which differs when absorbed.",
        needs="adapter",
    ),
    Bug(
        name="absorbed_heads_transposed",
        kind="head mapping",
        file="latent.py",
        old="            weight = self.v_up.weight.view(cfg.n_heads, cfg.v_dim, cfg.kv_rank)\n",
        new="            weight = self.v_up.weight.view(cfg.v_dim, cfg.n_heads, cfg.kv_rank).transpose(0, 1)\n",
        line_text=("weight = self.v_up.weight.view(cfg.v_dim, cfg.n_heads, cfg.kv_rank).transpose(0, 1)",),
        explanation="The absorbed path takes rows of the value projection as channels first, heads second.",
        needs="adapter",
    ),
    Bug(
        name="closure_over_the_loop",
        kind="recompute",
        file="model.py",
        old="                x = checkpoint(block.attend, x, use_reentrant=False)\n",
        new="                x = checkpoint(lambda hidden: block.attend(hidden), x, use_reentrant=False)\n",
        line_text=("x = checkpoint(lambda hidden: block.attend(hidden), x, use_reentrant=False)",),
        explanation="In backward the closure finds the last block of the loop, and recomputes every layer with it.",
        needs="black box",
    ),
    Bug(
        name="routing_weights_detached",
        kind="detached gradient",
        file="moe.py",
        old="        best = best / best.sum(-1, keepdim=True)\n",
        new="        best = (best / best.sum(-1, keepdim=True)).detach()\n",
        line_text=("best = (best / best.sum(-1, keepdim=True)).detach()",),
        explanation="The router gets no gradient from what experts put out.",
        needs="black box",
    ),
    Bug(
        name="index_scores_detached",
        kind="detached gradient",
        file="latent.py",
        old="        bias = self.index_gain[:, None] * torch.tanh(score).unsqueeze(2)\n",
        new="        bias = self.index_gain[:, None] * torch.tanh(score.detach()).unsqueeze(2)\n",
        line_text=("bias = self.index_gain[:, None] * torch.tanh(score.detach()).unsqueeze(2)",),
        explanation="The indexer gets no gradient at all and never learns.",
        needs="black box",
    ),
    Bug(
        name="balancing_loss_detached",
        kind="auxiliary loss",
        file="moe.py",
        old="        return cfg.n_experts * (share * probs.mean((0, 1))).sum()\n",
        new="        return cfg.n_experts * (share * probs.detach().mean((0, 1))).sum()\n",
        line_text=("return cfg.n_experts * (share * probs.detach().mean((0, 1))).sum()",),
        explanation="The balancing loss is in the sum, but has no gradient.",
        needs="adapter",
    ),
    Bug(
        name="up_for_gate",
        kind="dead parameter",
        file="moe.py",
        old="        return self.down(F.silu(self.gate(x)) * self.up(x))\n",
        new="        return self.down(F.silu(self.up(x)) * self.up(x))\n",
        line_text=(
            "return self.down(F.silu(self.up(x)) * self.up(x))",
            "self.gate = nn.Linear(dim, width, bias=False)",
        ),
        explanation="A slip of the pen: experts gate with their own values, and their gates are never read.",
        needs="black box",
    ),
    Bug(
        name="router_softmax_over_tokens",
        kind="gate",
        file="moe.py",
        old="        probs = self.router(x).to(compute_dtype(x)).softmax(-1)\n",
        new="        probs = self.router(x).to(compute_dtype(x)).softmax(1)\n",
        line_text=("probs = self.router(x).to(compute_dtype(x)).softmax(1)",),
        explanation="Probabilities are over tokens instead of experts: routing depends on later tokens.",
        needs="black box",
    ),
    Bug(
        name="temperature_gradient_without_last_tile",
        kind="hand-written gradient",
        file="fused.py",
        old="            grad_temperature += (grad_logits * _raw_logits(q, tile_keys)).sum((0, 2)) * ctx.scale\n",
        new="""            if tile_keys.shape[2] == TILE:
                grad_temperature += (grad_logits * _raw_logits(q, tile_keys)).sum((0, 2)) * ctx.scale
""",
        line_text=(
            "if tile_keys.shape[2] == TILE:",
            "grad_temperature += (grad_logits * _raw_logits(q, tile_keys)).sum((0, 2)) * ctx.scale",
        ),
        explanation="A last tile that is not full gives the temperature no gradient.",
        needs="black box",
    ),
    Bug(
        name="key_gradient_without_temperature",
        kind="hand-written gradient",
        file="fused.py",
        old="_per_group(scaled.unsqueeze(-1) * q.unsqueeze(-2), groups)\n",
        new="_per_group(ctx.scale * grad_logits.unsqueeze(-1) * q.unsqueeze(-2), groups)\n",
        line_text=(
            "grad_keys[:, :, part] = _per_group(ctx.scale * grad_logits.unsqueeze(-1) * q.unsqueeze(-2), groups)",
        ),
        explanation="The gradient of keys lacks the temperature: off by up to a tenth, by head.",
        needs="black box",
    ),
    Bug(
        name="delta_by_tile",
        kind="hand-written gradient",
        file="fused.py",
        old="            grad_logits = tile_probs * (grad_probs - delta)\n",
        new="""            tile_delta = (tile_probs * grad_probs).sum(-1, keepdim=True)
            grad_logits = tile_probs * (grad_probs - tile_delta)
""",
        line_text=(
            "tile_delta = (tile_probs * grad_probs).sum(-1, keepdim=True)",
            "grad_logits = tile_probs * (grad_probs - tile_delta)",
        ),
        explanation="Softmax's correction is summed per tile: right up to 16 keys, wrong beyond.",
        needs="black box",
    ),
    Bug(
        name="saved_probabilities_overwritten",
        kind="in-place",
        file="fused.py",
        old="            grad_logits = tile_probs * (grad_probs - delta)\n",
        new="            grad_logits = tile_probs.mul_(grad_probs - delta)\n",
        line_text=(
            "grad_logits = tile_probs.mul_(grad_probs - delta)",
            "grad_values[:, :, part] = _per_group(tile_probs.unsqueeze(-1) * grad_out.unsqueeze(-2), groups)",
        ),
        explanation="Saved probabilities are overwritten before the gradient of values reads them.",
        needs="black box",
    ),
    Bug(
        name="norm_without_eps",
        kind="division at zero",
        file="utils.py",
        old="(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps))",
        new="(wide / wide.square().mean(-1, keepdim=True).sqrt())",
        line_text=("return (wide / wide.square().mean(-1, keepdim=True).sqrt()).to(x.dtype) * self.weight",),
        explanation="A token of zeros, padding for instance, is divided by zero.",
        needs="black box",
    ),
    Bug(
        name="norm_squares_in_half",
        kind="overflow",
        file="utils.py",
        old="        wide = x.to(compute_dtype(x))\n",
        new="        wide = x\n",
        line_text=(
            "wide = x",
            "return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight",
        ),
        explanation="In float16 squares of values beyond 256 overflow and the token comes out as zeros.",
        needs="black box",
    ),
    Bug(
        name="fallback_without_temperature",
        kind="wrong fallback",
        file="fused.py",
        old="""    try:
        out = fused_softmax(*arguments)
    except FusedUnsupported:
        out = eager_softmax(*arguments)
""",
        new="""    try:
        out = fused_softmax(*arguments)
    except RuntimeError:
        out = eager_softmax(*arguments[:5], torch.ones_like(temperature), scale)
""",
        line_text=("out = eager_softmax(*arguments[:5], torch.ones_like(temperature), scale)", "except RuntimeError:"),
        explanation="Numbers of keys that are not aligned go to a fallback without the learned temperature.",
        needs="black box",
    ),
    Bug(
        name="zero_is_on",
        kind="flag without effect",
        file="flags.py",
        old='    return default if not value else value not in ("0", "off", "false", "no")\n',
        new="    return default if not value else bool(value)\n",
        line_text=("return default if not value else bool(value)",),
        explanation='bool("0") is True: QUARRY_FUSED=0 and QUARRY_RECOMPUTE=0 have no effect.',
        needs="black box",
    ),
    Bug(
        name="recompute_switch_frozen",
        kind="flag frozen",
        file="model.py",
        old='''    def _recomputing(self) -> bool:
        """Whether attention is computed again in backward; experts route, and are not."""
        return self.cfg.recompute and self.training and torch.is_grad_enabled() and switch("QUARRY_RECOMPUTE")
''',
        new='''    def _recomputing(self, wanted: bool = switch("QUARRY_RECOMPUTE")) -> bool:
        """Whether attention is computed again in backward; experts route, and are not."""
        return self.cfg.recompute and self.training and torch.is_grad_enabled() and wanted
''',
        line_text=(
            'def _recomputing(self, wanted: bool = switch("QUARRY_RECOMPUTE")) -> bool:',
            "return self.cfg.recompute and self.training and torch.is_grad_enabled() and wanted",
        ),
        explanation="A default is evaluated once, at import: later changes of QUARRY_RECOMPUTE have no effect.",
        needs="black box",
    ),
    Bug(
        name="scores_of_all_tokens_kept",
        kind="memory",
        file="indexer.py",
        old="""        chosen = gather_tokens(keys, index)
        products = torch.einsum("bchd,bckd->bchk", query, chosen).relu()
        return torch.einsum("bch,bchk->bck", weight, products)
""",
        new="""        products = torch.einsum("bchd,btd->bcht", query, keys).relu()
        return torch.einsum("bch,bcht->bct", weight, products).gather(-1, index)
""",
        line_text=(
            'products = torch.einsum("bchd,btd->bcht", query, keys).relu()',
            'return torch.einsum("bch,bcht->bct", weight, products).gather(-1, index)',
        ),
        explanation="Scores of all tokens are made with gradients, then gathered: training keeps queries by tokens.",
        needs="black box",
    ),
    Bug(
        name="ranks_token_by_token",
        kind="host work",
        file="moe.py",
        old="        rank = asked.cumsum(1)\n",
        new="        rank = torch.stack([asked[:, : token + 1].sum(1) for token in range(asked.shape[1])], dim=1)\n",
        line_text=("rank = torch.stack([asked[:, : token + 1].sum(1) for token in range(asked.shape[1])], dim=1)",),
        explanation="A Python loop over tokens that sums all earlier ones each time: quadratic work, same ranks.",
        needs="black box",
    ),
    Bug(
        name="everything_fits_in_eval",
        kind="train and eval",
        file="moe.py",
        old="        kept = (asked > 0) & (rank <= self._allowance(start, x.shape[1], x.device))\n",
        new="""        kept = asked > 0
        if self.training:
            kept = kept & (rank <= self._allowance(start, x.shape[1], x.device))
""",
        line_text=(
            "if self.training:",
            "kept = kept & (rank <= self._allowance(start, x.shape[1], x.device))",
            "kept = asked > 0",
        ),
        explanation="Experts drop tokens in training only; a model is evaluated as another one than was trained.",
        needs="black box",
    ),
    Bug(
        name="counts_kept_between_calls",
        kind="stale state",
        file="moe.py",
        old="""        if counts is not None:
            rank = rank + counts.unsqueeze(1)
""",
        new="""        if counts is None:
            counts = self.__dict__.get("_counts")
        if counts is not None and counts.shape[0] == x.shape[0]:
            rank = rank + counts.unsqueeze(1)
        self._counts = asked.sum(1)
""",
        line_text=(
            "self._counts = asked.sum(1)",
            'counts = self.__dict__.get("_counts")',
            "rank = rank + counts.unsqueeze(1)",
        ),
        explanation="Requests of one call are charged to the next with the same batch: two calls of one input differ.",
        needs="black box",
    ),
    Bug(
        name="mode_left_by_evaluation",
        kind="state left by eval",
        file="training.py",
        old="""    losses = [float(next_token_loss(model(tokens)[0], tokens, ignore)) for tokens in batches]
    model.train(was_training)
""",
        new="""    losses = [float(next_token_loss(model(tokens)[0], tokens, ignore)) for tokens in batches]
    model.stack.train(was_training)
""",
        line_text=("model.stack.train(was_training)",),
        explanation="After an evaluation only the stack is set back: dropout around it stays off for all later steps.",
        needs="adapter",
    ),
    Bug(
        name="accumulated_not_averaged",
        kind="accumulation",
        file="training.py",
        old="            (loss / len(batches)).backward()\n",
        new="            loss.backward()\n",
        line_text=("loss.backward()",),
        explanation="Gradients of micro-batches are summed; with more of them steps hit the clip, not the rate meant.",
        needs="adapter",
    ),
    Bug(
        name="labels_not_shifted",
        kind="label shift",
        file="training.py",
        old="    predicted, wanted = logits[:, :-1], tokens[:, 1:]\n",
        new="    predicted, wanted = logits, tokens\n",
        line_text=("predicted, wanted = logits, tokens",),
        explanation="The model is trained to say the token that it was just given.",
        needs="adapter",
    ),
    Bug(
        name="clipped_after_the_step",
        kind="clipping",
        file="training.py",
        old="""        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.optimizer.step()
""",
        new="""        self.optimizer.step()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
""",
        line_text=("nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)", "self.optimizer.step()"),
        explanation="Gradients are clipped when they have been used already.",
        needs="adapter",
    ),
    Bug(
        name="first_step_at_zero",
        kind="schedule",
        file="training.py",
        old="        return (step + 1) / cfg.warmup\n",
        new="        return step / cfg.warmup\n",
        line_text=("return step / cfg.warmup",),
        explanation="The first step has a rate of zero: its batch is wasted, and a one-step check sees nothing move.",
        needs="adapter",
    ),
    Bug(
        name="vectors_not_optimized",
        kind="optimizer groups",
        file="training.py",
        old="""    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
""",
        new="""    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 1]
""",
        line_text=("others = [p for p in model.parameters() if p.requires_grad and p.dim() < 1]",),
        explanation="Norms, gains and temperatures are in no group of the optimizer and never move.",
        needs="adapter",
    ),
]
