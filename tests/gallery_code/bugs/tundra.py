"""Bugs planted in tundra."""

from tests.gallery_code.planting import Bug

BUGS = [
    Bug(
        name="window_edge_counts",
        kind="window, off by one",
        file="window.py",
        old="(token > own - cfg.window)",
        new="(token >= own - cfg.window)",
        line_text=("seen = (token <= own) & (token >= own - cfg.window) & (token >= start)",),
        explanation="The mask shows one token more than keys are cut for: the first query of a chunk alone lacks it.",
        needs="adapter",
    ),
    Bug(
        name="own_block_of_next_token",
        kind="selection of own block",
        file="layout.py",
        old="    return Layout(offset, position, zeros, position // block, zeros, place)\n",
        new="    return Layout(offset, position, zeros, (position + 1) // block, zeros, place)\n",
        line_text=("return Layout(offset, position, zeros, (position + 1) // block, zeros, place)",),
        explanation="A block's last token takes the next block for its own: it uses up a place, where there is one.",
        needs="black box",
    ),
    Bug(
        name="later_blocks_compete",
        kind="selection of future blocks",
        file="blocks.py",
        old="    allowed = (number >= first) & (number <= own)\n",
        new="    allowed = number >= first\n",
        line_text=("allowed = number >= first",),
        explanation="Later blocks take places of earlier ones; their tokens are hidden, their scores decide.",
        needs="black box",
    ),
    Bug(
        name="alike_blocks_unordered",
        kind="ties of selection",
        file="blocks.py",
        old="    score = logits.mean(3) + cfg.recency * number\n",
        new="    score = logits.mean(3)\n",
        line_text=("score = logits.mean(3)",),
        explanation="Nothing tells blocks with the same means apart: rounding chooses, and decoding rounds otherwise.",
        needs="adapter",
    ),
    Bug(
        name="gathered_scale_by_tokens",
        kind="scale",
        file="blocks.py",
        old='    logits = torch.einsum("bcgrd,bcgtd->bcgrt", q.to(wide), keys) * q.shape[-1] ** -0.5\n',
        new='    logits = torch.einsum("bcgrd,bcgtd->bcgrt", q.to(wide), keys) * keys.shape[-2] ** -0.5\n',
        line_text=('logits = torch.einsum("bcgrd,bcgtd->bcgrt", q.to(wide), keys) * keys.shape[-2] ** -0.5',),
        explanation="Gathered scores are scaled by the number of tokens; by the mask they are by the width of a head.",
        needs="black box",
    ),
    Bug(
        name="softmax_over_queries",
        kind="softmax over the wrong dimension",
        file="utils.py",
        old=".masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1)\n",
        new=".masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(1)\n",
        line_text=("probs = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(1)",),
        explanation="Probabilities of a token sum to one over a chunk's queries, so that queries see later ones.",
        needs="black box",
    ),
    Bug(
        name="angles_in_model_dtype",
        kind="dtype of positions",
        file="rope.py",
        old="    dtype = torch.promote_types(like.dtype, torch.float32)\n",
        new="    dtype = like.dtype\n",
        line_text=(
            "dtype = like.dtype",
            "angle = (position.to(frequency.dtype).unsqueeze(-1) * frequency).unsqueeze(-2)",
        ),
        explanation="In bfloat16 positions beyond 256 and their angles have eight bits: neighbours turn alike.",
        needs="black box",
    ),
    Bug(
        name="page_slot_from_piece",
        kind="cache slot",
        file="cache.py",
        old="        slot = self.table[:, block] * self.block + position % self.block\n",
        new="        slot = self.table[:, block] * self.block + (position - self.length) % self.block\n",
        line_text=("slot = self.table[:, block] * self.block + (position - self.length) % self.block",),
        explanation="A piece is written from the first slot of a page on, wherever it begins: single tokens overwrite.",
        needs="adapter",
    ),
    Bug(
        name="ring_read_in_slot_order",
        kind="ring wrap",
        file="cache.py",
        old="        slot = torch.arange(first, self.length, device=self.keys.device) % self.window\n",
        new="        slot = torch.arange(self.length - first, device=self.keys.device)\n",
        line_text=("slot = torch.arange(self.length - first, device=self.keys.device)",),
        explanation="Once the ring has wrapped its slots are taken for positions: the window drops the wrong token.",
        needs="adapter",
    ),
    Bug(
        name="sinks_of_first_piece_only",
        kind="cache start",
        file="cache.py",
        old="        missing = max(0, min(end, self.sink_keys.shape[1]) - self.length)\n",
        new="        missing = min(end, self.sink_keys.shape[1]) if self.length == 0 else 0\n",
        line_text=("missing = min(end, self.sink_keys.shape[1]) if self.length == 0 else 0",),
        explanation="After a prompt of one token the second sink is never kept; far later queries see zeros for it.",
        needs="adapter",
    ),
    Bug(
        name="means_kept_until_next_page",
        kind="stale state",
        file="attention.py",
        old="""        means = [sums / self.cfg.block for sums in (pages.key_sums, pages.value_sums)]
""",
        new="""        means = self.__dict__.get("_means")
        if means is None or means[0].shape != pages.key_sums.shape:
            means = self._means = [sums / self.cfg.block for sums in (pages.key_sums, pages.value_sums)]
""",
        line_text=(
            'means = self.__dict__.get("_means")',
            "if means is None or means[0].shape != pages.key_sums.shape:",
            "means = self._means = [sums / self.cfg.block for sums in (pages.key_sums, pages.value_sums)]",
        ),
        explanation="Means are made anew with a page alone: a block that fills up keeps the one from its first tokens.",
        needs="adapter",
    ),
    Bug(
        name="queries_turned_from_zero",
        kind="positions in decoding",
        file="attention.py",
        old="        turned = self._grouped(rotate(plain, cos, sin, cfg.rope_dim))\n",
        new="""        cos, sin = turn(layout.position - layout.offset, cfg, x)
        turned = self._grouped(rotate(plain, cos, sin, cfg.rope_dim))
""",
        line_text=(
            "cos, sin = turn(layout.position - layout.offset, cfg, x)",
            "turned = self._grouped(rotate(plain, cos, sin, cfg.rope_dim))",
        ),
        explanation="Queries after a cache are rotated as if their piece began the sequence; keys are not.",
        needs="adapter",
    ),
    Bug(
        name="frequencies_by_call_length",
        kind="length dependence of positions",
        file="rope.py",
        old="    frequency = frequencies(cfg, like)\n",
        new="""    stretch = (position.max() + 1).clamp(min=cfg.rope_original) / cfg.rope_original
    frequency = frequencies(cfg, like) / stretch.to(like.dtype)
""",
        line_text=(
            "stretch = (position.max() + 1).clamp(min=cfg.rope_original) / cfg.rope_original",
            "frequency = frequencies(cfg, like) / stretch.to(like.dtype)",
        ),
        explanation="Beyond the original context frequencies follow the call's length: later tokens turn early ones.",
        needs="black box",
    ),
    Bug(
        name="mask_path_repeats_groups",
        kind="head mapping",
        file="blocks.py",
        old="    keys, values = keys.repeat_interleave(heads, dim=1), values.repeat_interleave(heads, dim=1)\n",
        new="    keys, values = keys.repeat(1, heads, 1, 1), values.repeat(1, heads, 1, 1)\n",
        line_text=("keys, values = keys.repeat(1, heads, 1, 1), values.repeat(1, heads, 1, 1)",),
        explanation="By the mask query heads take key heads in turns, gathered in consecutive groups.",
        needs="black box",
    ),
    Bug(
        name="first_branch_left_out",
        kind="gate without branch",
        file="attention.py",
        old="        mixed = (torch.stack(branches, dim=-1) * gates.unsqueeze(-2)).sum(-1)\n",
        new="        mixed = (torch.stack(branches[1:], dim=-1) * gates[..., 1:].unsqueeze(-2)).sum(-1)\n",
        line_text=("mixed = (torch.stack(branches[1:], dim=-1) * gates[..., 1:].unsqueeze(-2)).sum(-1)",),
        explanation="Block means are attended to and thrown away; their gates, a third of the rows, get no gradient.",
        needs="black box",
    ),
    Bug(
        name="block_means_detached",
        kind="detached gradient",
        file="attention.py",
        old="        means = [take_rows(item, place).to(wide).mean(2) for item in (plain_keys, values)]\n",
        new="        means = [take_rows(item.detach(), place).to(wide).mean(2) for item in (plain_keys, values)]\n",
        line_text=("means = [take_rows(item.detach(), place).to(wide).mean(2) for item in (plain_keys, values)]",),
        explanation="Keys and values get gradients from chosen blocks alone, none from the means that queries read.",
        needs="black box",
    ),
    Bug(
        name="residual_added_in_place",
        kind="in-place on the input",
        file="model.py",
        old="        return x + self.drop(self.attention(self.attention_norm(x), layout, cache))\n",
        new="""        mixed = self.drop(self.attention(self.attention_norm(x), layout, cache))
        return x + mixed if torch.is_grad_enabled() else x.add_(mixed)
""",
        line_text=("return x + mixed if torch.is_grad_enabled() else x.add_(mixed)",),
        explanation="Without gradients the first layer adds to the caller's embeddings; a second call finds others.",
        needs="black box",
    ),
    Bug(
        name="padding_restored_by_order",
        kind="padding",
        file="model.py",
        old="        out = take_rows(self._layers(take_rows(x, compaction.order), layout), compaction.back)\n",
        new="        out = take_rows(self._layers(take_rows(x, compaction.order), layout), compaction.order)\n",
        line_text=("out = take_rows(self._layers(take_rows(x, compaction.order), layout), compaction.order)",),
        explanation="Outputs go back by the order in which tokens came: right for padding at the end, else another's.",
        needs="black box",
    ),
    Bug(
        name="sinks_of_the_row",
        kind="packed documents",
        file="attention.py",
        old="        sink = layout.start.unsqueeze(-1) + torch.arange(self.cfg.sinks, device=keys.device)\n",
        new="        sink = torch.arange(self.cfg.sinks, device=keys.device).expand(*layout.start.shape, -1)\n",
        line_text=("sink = torch.arange(self.cfg.sinks, device=keys.device).expand(*layout.start.shape, -1)",),
        explanation="Sinks of all documents are the first tokens of the row: later documents see those of the first.",
        needs="black box",
    ),
    Bug(
        name="flags_read_once",
        kind="flag frozen",
        file="flags.py",
        old="""import os

SELECTED = ("auto", "gather", "dense")
OFF = ("0", "off", "false", "no")


def text(""",
        new="""import functools
import os

SELECTED = ("auto", "gather", "dense")
OFF = ("0", "off", "false", "no")


@functools.cache
def text(""",
        line_text=("@functools.cache", "def text(name: str, default: str) -> str:"),
        explanation="A variable's first value is kept: TUNDRA_RECOMPUTE=0 after a first step has no effect.",
        needs="black box",
    ),
    Bug(
        name="window_scores_all_tokens",
        kind="memory",
        file="window.py",
        old="        low = max(0, offset + start - window + 1 - self.base)\n",
        new="        low = 0\n",
        line_text=("low = 0",),
        explanation="Queries score all earlier tokens and mask most of them: quadratic time and memory, same outputs.",
        needs="black box",
    ),
    Bug(
        name="gates_logged_for_ever",
        kind="memory growth",
        file="attention.py",
        old="        mixed = (torch.stack(branches, dim=-1) * gates.unsqueeze(-2)).sum(-1)\n",
        new="""        self.__dict__.setdefault("gate_log", []).append(gates)
        mixed = (torch.stack(branches, dim=-1) * gates.unsqueeze(-2)).sum(-1)
""",
        line_text=('self.__dict__.setdefault("gate_log", []).append(gates)',),
        explanation="Gates of every call stay in a list, with the graph behind them: memory grows until there is none.",
        needs="black box",
    ),
    Bug(
        name="one_query_at_a_time",
        kind="host work",
        file="window.py",
        old="        for start, end in spans(q.shape[1], chunk)\n",
        new="        for start, end in spans(q.shape[1], min(chunk, q.shape[0]))\n",
        line_text=("for start, end in spans(q.shape[1], min(chunk, q.shape[0]))",),
        explanation="The chunk is bounded by the batch, not by the length: a lone row is looped over token by token.",
        needs="black box",
    ),
    Bug(
        name="gradients_zeroed_in_the_loop",
        kind="accumulation",
        file="training.py",
        old="            loss.backward()\n",
        new="""            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
""",
        line_text=("self.optimizer.zero_grad(set_to_none=True)", "loss.backward()"),
        explanation="Each micro-batch throws away the gradients of those before it; only the last one trains.",
        needs="adapter",
    ),
    Bug(
        name="clipped_in_the_loop",
        kind="clipping",
        file="training.py",
        old="""            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), cfg.clip)
""",
        new="""            total += float(loss.detach())
            nn.utils.clip_grad_norm_(self.model.parameters(), cfg.clip)
""",
        line_text=("nn.utils.clip_grad_norm_(self.model.parameters(), cfg.clip)",),
        explanation="The sum so far is clipped after every micro-batch: where it was large, later ones weigh more.",
        needs="adapter",
    ),
    Bug(
        name="evaluation_reseeds",
        kind="state changed by eval",
        file="training.py",
        old="    total, counted = 0.0, 0\n",
        new="""    torch.manual_seed(0)
    total, counted = 0.0, 0
""",
        line_text=("torch.manual_seed(0)",),
        explanation="Every evaluation sets back the generator of all: dropout after it is the same each time.",
        needs="adapter",
    ),
    Bug(
        name="resumed_at_step_zero",
        kind="resume",
        file="training.py",
        old="""        self.done = state["done"]
        torch.set_rng_state""",
        new="""        torch.set_rng_state""",
        line_text=(
            "def restore(self, state: dict[str, Any]) -> None:",
            'self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))',
            'torch.set_rng_state(state["rng"])',
        ),
        explanation="A resumed run warms up again: the number of steps is in the snapshot and is not read.",
        needs="adapter",
    ),
    Bug(
        name="labels_shifted_twice",
        kind="label shift",
        file="training.py",
        old="    wanted = tokens[:, 1:]\n",
        new="    wanted = F.pad(tokens[:, 2:], (0, 1), value=ignore)\n",
        line_text=("wanted = F.pad(tokens[:, 2:], (0, 1), value=ignore)", "predicted = logits[:, :-1].flatten(0, 1)"),
        explanation="Logits are cut for the next token, labels moved once more: the model learns the token after next.",
        needs="adapter",
    ),
    Bug(
        name="norms_decay_and_matrices_do_not",
        kind="weight decay",
        file="training.py",
        old="""    decayed = {"params": matrices, "weight_decay": cfg.weight_decay}
    others = {"params": vectors, "weight_decay": 0.0}
""",
        new="""    decayed = {"params": vectors, "weight_decay": cfg.weight_decay}
    others = {"params": matrices, "weight_decay": 0.0}
""",
        line_text=(
            'decayed = {"params": vectors, "weight_decay": cfg.weight_decay}',
            'others = {"params": matrices, "weight_decay": 0.0}',
        ),
        explanation="The two groups are swapped: norms, biases and embeddings decay, matrices do not.",
        needs="adapter",
    ),
    Bug(
        name="dropout_in_evaluation",
        kind="train and eval",
        file="training.py",
        old="F.dropout(self.embed(tokens), self.dropout, training=self.training)",
        new="F.dropout(self.embed(tokens), self.dropout)",
        line_text=("embedded = F.dropout(self.embed(tokens), self.dropout)",),
        explanation="The function drops by default, whatever the mode: evaluation is noisy, and too high.",
        needs="adapter",
    ),
    Bug(
        name="feed_forward_zero_twice",
        kind="initialization",
        file="model.py",
        old="""                if module.bias is not None:
""",
        new="""                if name.endswith((".up", ".down")):
                    nn.init.zeros_(module.weight)
                if module.bias is not None:
""",
        line_text=('if name.endswith((".up", ".down")):', "nn.init.zeros_(module.weight)"),
        explanation="One projection at zero learns; two in a row never give each other a gradient, nor the gate.",
        needs="black box",
    ),
    Bug(
        name="eps_of_another_dtype",
        kind="division at zero",
        file="utils.py",
        old="        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)\n",
        new="        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + torch.finfo(torch.float64).tiny)\n",
        line_text=(
            "scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + torch.finfo(torch.float64).tiny)",
            "return (wide * scale).to(x.dtype) * self.weight",
        ),
        explanation="What is added is zero in float32: a token of zeros comes out finite in float64 alone.",
        needs="black box",
    ),
    Bug(
        name="reentrant_recompute",
        kind="recompute",
        file="model.py",
        old="                x = checkpoint(layer.attend, x, layout, use_reentrant=False)\n",
        new="                x = checkpoint(layer.attend, x, layout, use_reentrant=True)\n",
        line_text=("x = checkpoint(layer.attend, x, layout, use_reentrant=True)",),
        explanation="Where embeddings have no gradient the first layer's attention gets none either.",
        needs="black box",
    ),
    Bug(
        name="tokens_of_the_first_row",
        kind="batch mixing",
        file="utils.py",
        old="    row = index + first.view(-1, *[1] * (index.dim() - 1))\n",
        new="    row = index + first.view(*[1] * (index.dim() - 1), -1)[..., :1]\n",
        line_text=("row = index + first.view(*[1] * (index.dim() - 1), -1)[..., :1]",),
        explanation="Every row of a batch reads block means and sinks of the first one.",
        needs="black box",
    ),
    Bug(
        name="pages_shared_after_reorder",
        kind="aliasing",
        file="cache.py",
        old="""        table = self.table[rows]
        self.key_sums, self.value_sums = self.key_sums[rows], self.value_sums[rows]
        self.keys, self.values = (x[table.T.flatten()] for x in (self.keys, self.values))
        batch, blocks = table.shape
        self.table = torch.arange(batch * blocks, device=table.device).view(blocks, batch).T.contiguous()
""",
        new="""        self.table = self.table[rows]
        self.key_sums, self.value_sums = self.key_sums[rows], self.value_sums[rows]
""",
        line_text=("self.table = self.table[rows]",),
        explanation="A row that is chosen twice has the same last page twice: the next tokens of both go to one slot.",
        needs="adapter",
    ),
    Bug(
        name="sinks_always_visible",
        kind="mask",
        file="window.py",
        old="    return seen, sink <= own - cfg.window\n",
        new="    return seen, torch.ones_like(sink <= own, dtype=torch.bool)\n",
        line_text=("return seen, torch.ones_like(sink <= own, dtype=torch.bool)",),
        explanation="Sinks are shown to all: the first token sees the second one, and those in a window count twice.",
        needs="black box",
    ),
]
