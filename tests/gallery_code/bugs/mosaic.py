"""Bugs planted in mosaic."""

from tests.gallery_code.planting import Bug

BUGS = [
    Bug(
        name="conv_centred",
        kind="conv padding",
        file="conv.py",
        old="        padded = F.pad(x.transpose(1, 2), (self.width - 1, 0))\n",
        new="""        left = self.width // 2
        padded = F.pad(x.transpose(1, 2), (left, self.width - 1 - left))
""",
        line_text=(
            "padded = F.pad(x.transpose(1, 2), (left, self.width - 1 - left))",
            "mixed = F.conv1d(padded, self.weight, self.bias, groups=self.channels)[..., :length]",
            "left = self.width // 2",
        ),
        explanation="The short convolution is padded on both sides and sees the next token.",
        needs="black box",
    ),
    Bug(
        name="conv_state_of_outputs",
        kind="decode state, wrong field",
        file="conv.py",
        old="        return y, last_rows(x, self.width - 1)\n",
        new="        return y, last_rows(y, self.width - 1)\n",
        line_text=("return y, last_rows(y, self.width - 1)",),
        explanation="Prefill keeps outputs of the convolution; a step needs its inputs. The first steps are off.",
        needs="adapter",
    ),
    Bug(
        name="value_sum_goes_on",
        kind="decode state, not reset",
        file="local.py",
        old="            key_sum, value_sum = torch.zeros_like(key_sum), torch.zeros_like(value_sum)\n",
        new="            key_sum = torch.zeros_like(key_sum)\n",
        line_text=("key_sum = torch.zeros_like(key_sum)", "value_sum = state.value_sum + v.squeeze(2)"),
        explanation="The sum of values is not started again with a new block; later landmarks hold both blocks.",
        needs="adapter",
    ),
    Bug(
        name="sums_not_seeded",
        kind="decode state, unseeded",
        file="local.py",
        old="""            key_sum=key_sums[:, :, -1] if partial else torch.zeros_like(key_sums[:, :, -1]),
            value_sum=value_sums[:, :, -1] if partial else torch.zeros_like(value_sums[:, :, -1]),
""",
        new="""            key_sum=torch.zeros_like(key_sums[:, :, -1]),
            value_sum=torch.zeros_like(value_sums[:, :, -1]),
""",
        line_text=(
            "key_sum=torch.zeros_like(key_sums[:, :, -1]),",
            "value_sum=torch.zeros_like(value_sums[:, :, -1]),",
        ),
        explanation="A prompt that ends inside a block leaves sums of zero; two blocks later its landmark is wrong.",
        needs="adapter",
    ),
    Bug(
        name="window_one_short",
        kind="decode window",
        file="local.py",
        old="            keys, values = keys[:, :, -cfg.block :], values[:, :, -cfg.block :]\n",
        new="            keys, values = keys[:, :, 1 - cfg.block :], values[:, :, 1 - cfg.block :]\n",
        line_text=("keys, values = keys[:, :, 1 - cfg.block :], values[:, :, 1 - cfg.block :]",),
        explanation="When a block starts, decoding keeps one token too few of the block before.",
        needs="adapter",
    ),
    Bug(
        name="landmark_distance_in_step",
        kind="positions",
        file="local.py",
        old="offset + blocks_back * cfg.block - (cfg.block - 1)])",
        new="offset + blocks_back * cfg.block])",
        line_text=("distance = torch.cat([distance, offset + blocks_back * cfg.block])",),
        explanation="Decoding measures landmarks from the start of their block, the whole pass from its end.",
        needs="adapter",
    ),
    Bug(
        name="look_back_distance",
        kind="position bias",
        file="positions.py",
        old="    query = torch.arange(block, device=device) + block\n",
        new="    query = torch.arange(block, device=device)\n",
        line_text=(
            "query = torch.arange(block, device=device)",
            "return (query[:, None] - key).clamp(min=0)",
        ),
        explanation="Queries are not shifted past the look-back keys; the clamp hides distances a block short.",
        needs="adapter",
    ),
    Bug(
        name="kv_heads_tiled_in_step",
        kind="head mapping",
        file="local.py",
        old="""        all_keys = all_keys.repeat_interleave(cfg.queries_per_kv, dim=1)
        all_values = all_values.repeat_interleave(cfg.queries_per_kv, dim=1)
""",
        new="""        all_keys = all_keys.repeat(1, cfg.queries_per_kv, 1, 1)
        all_values = all_values.repeat(1, cfg.queries_per_kv, 1, 1)
""",
        line_text=(
            "all_keys = all_keys.repeat(1, cfg.queries_per_kv, 1, 1)",
            "all_values = all_values.repeat(1, cfg.queries_per_kv, 1, 1)",
        ),
        explanation="Decoding tiles key and value heads where the whole pass repeats each for a run of query heads.",
        needs="adapter",
    ),
    Bug(
        name="landmark_windows_from_the_end",
        kind="mask",
        file="local.py",
        old="        return padded.unfold(2, count, 1)[:, :, :n_blocks].transpose(-1, -2)\n",
        new="        return padded.unfold(2, count, 1)[:, :, -n_blocks:].transpose(-1, -2)\n",
        line_text=("return padded.unfold(2, count, 1)[:, :, -n_blocks:].transpose(-1, -2)",),
        explanation="Windows are two blocks late: a query sees the landmark of its own block, later tokens included.",
        needs="black box",
    ),
    Bug(
        name="diagonal_one",
        kind="mask",
        file="positions.py",
        old="    own = query[:, None] >= query\n",
        new="    own = torch.ones(block, block, dtype=torch.bool, device=device).tril(diagonal=1)\n",
        line_text=("own = torch.ones(block, block, dtype=torch.bool, device=device).tril(diagonal=1)",),
        explanation="Inside a block a token sees the next one.",
        needs="black box",
    ),
    Bug(
        name="padding_decays_memory",
        kind="chunk boundary",
        file="scan.py",
        old="    log_decay = to_chunks(pad_time(log_decay, pad), chunk)\n",
        new="    log_decay = to_chunks(torch.nn.functional.pad(log_decay, (0, pad), value=-1.0), chunk)\n",
        line_text=("log_decay = to_chunks(torch.nn.functional.pad(log_decay, (0, pad), value=-1.0), chunk)",),
        explanation="Padding decays the memory that a prompt leaves, unless its length is a multiple of the chunk.",
        needs="adapter",
    ),
    Bug(
        name="carried_without_own_decay",
        kind="chunk boundary",
        file="scan.py",
        old="    carried = (q * cumulative.exp().unsqueeze(-1)) @ torch.stack(before, dim=2)\n",
        new="    carried = (q * (cumulative - log_decay).exp().unsqueeze(-1)) @ torch.stack(before, dim=2)\n",
        line_text=("carried = (q * (cumulative - log_decay).exp().unsqueeze(-1)) @ torch.stack(before, dim=2)",),
        explanation="What comes from earlier chunks lacks the token's own decay; only from two chunks on.",
        needs="black box",
    ),
    Bug(
        name="decays_in_bfloat16",
        kind="dtype of decays",
        file="scan.py",
        old="    cumulative = log_decay.cumsum(-1)\n",
        new="    cumulative = log_decay.bfloat16().cumsum(-1).to(log_decay.dtype)\n",
        line_text=("cumulative = log_decay.bfloat16().cumsum(-1).to(log_decay.dtype)",),
        explanation="Log decays are summed in bfloat16, whatever the dtype of the model.",
        needs="black box",
    ),
    Bug(
        name="landmark_sums_in_bfloat16",
        kind="dtype of kept sums",
        file="local.py",
        old="        return blocks.to(compute_dtype(blocks)).sum(3)\n",
        new="        return blocks.sum(3, dtype=torch.bfloat16)\n",
        line_text=("return blocks.sum(3, dtype=torch.bfloat16)",),
        explanation="Sums behind landmarks are kept in bfloat16, to save a little memory.",
        needs="black box",
    ),
    Bug(
        name="decay_factored",
        kind="overflow",
        file="scan.py",
        old="""    difference = cumulative.unsqueeze(-1) - cumulative.unsqueeze(-2)
    return difference.masked_fill(later, -torch.inf).exp()
""",
        new="""    decay = cumulative.exp().unsqueeze(-1) * (-cumulative).exp().unsqueeze(-2)
    return decay.masked_fill(later, 0.0)
""",
        line_text=(
            "decay = cumulative.exp().unsqueeze(-1) * (-cumulative).exp().unsqueeze(-2)",
            "return decay.masked_fill(later, 0.0)",
        ),
        explanation="exp(a - b) as exp(a) * exp(-b): not finite when decays are strong, as for a repeated token.",
        needs="black box",
    ),
    Bug(
        name="root_at_zero",
        kind="division at zero",
        file="norms.py",
        old="        return (wide * torch.rsqrt(power + self.eps)).to(x.dtype) * self.weight\n",
        new="        return (wide / (power.sqrt() + self.eps)).to(x.dtype) * self.weight\n",
        line_text=(
            "return (wide / (power.sqrt() + self.eps)).to(x.dtype) * self.weight",
            "power = wide.square().mean(-1, keepdim=True)",
        ),
        explanation="Eps is added after the root, whose slope at zero is infinite: tokens of zeros give NaN gradients.",
        needs="black box",
    ),
    Bug(
        name="decay_bias_unread",
        kind="dead parameter",
        file="linear.py",
        old="        log_decay = F.logsigmoid((self.decay(x) + self.decay_bias).to(wide))\n",
        new="        log_decay = F.logsigmoid(self.decay(x).to(wide))\n",
        line_text=(
            "log_decay = F.logsigmoid(self.decay(x).to(wide))",
            "self.decay_bias = nn.Parameter(torch.linspace(-4.5, 4.5, cfg.n_heads))",
        ),
        explanation="The bias of decays, with its careful start, is never read.",
        needs="black box",
    ),
    Bug(
        name="beta_clamped_from_above",
        kind="branch constant",
        file="linear.py",
        old="        beta = torch.sigmoid(self.beta(x)).clamp(min=self.cfg.beta_floor)\n",
        new="        beta = torch.sigmoid(self.beta(x)).clamp(max=self.cfg.beta_floor)\n",
        line_text=("beta = torch.sigmoid(self.beta(x)).clamp(max=self.cfg.beta_floor)",),
        explanation="The floor is a ceiling: write strength is 0.02 for every token and does not learn.",
        needs="black box",
    ),
    Bug(
        name="fallback_not_scaled",
        kind="wrong fallback",
        file="scan.py",
        old="""    try:
        out, memory = parallel_scan(*arguments, scale, chunk)
    except UnsupportedShape:
        out, memory = loop_scan(*arguments, scale, chunk)
""",
        new="""    try:
        out, memory = parallel_scan(*arguments, scale, chunk)
    except (UnsupportedShape, RuntimeError):
        out, memory = loop_scan(*arguments, 1.0, chunk)
""",
        line_text=("out, memory = loop_scan(*arguments, 1.0, chunk)", "except (UnsupportedShape, RuntimeError):"),
        explanation="The fallback for less than two chunks is given no scale, as if queries had it already.",
        needs="black box",
    ),
    Bug(
        name="landmark_switch_frozen",
        kind="flag frozen",
        file="flags.py",
        old='''def landmarks_enabled() -> bool:
    """Whether local mixers see landmarks."""
    return switch("MOSAIC_LANDMARKS")
''',
        new='''_LANDMARKS = switch("MOSAIC_LANDMARKS")


def landmarks_enabled() -> bool:
    """Whether local mixers see landmarks."""
    return _LANDMARKS
''',
        line_text=('_LANDMARKS = switch("MOSAIC_LANDMARKS")', "return _LANDMARKS"),
        explanation="MOSAIC_LANDMARKS is read once, at import; later changes have no effect.",
        needs="black box",
    ),
    Bug(
        name="scan_switch_without_effect",
        kind="flag without effect",
        file="flags.py",
        old="    return name or configured\n",
        new="    return configured or name\n",
        line_text=("return configured or name",),
        explanation="The configuration always goes before MOSAIC_SCAN, which is never used.",
        needs="black box",
    ),
    Bug(
        name="mask_by_way_of_the_square",
        kind="memory",
        file="positions.py",
        old="""    query = torch.arange(block, device=device)
    own = query[:, None] >= query
    before = torch.ones(block, block, dtype=torch.bool, device=device)
    visible = torch.cat([before, own], dim=1).repeat(n_blocks, 1, 1)
    visible[0, :, :block] = False
    return visible
""",
        new="""    token = torch.arange(n_blocks * block, device=device)
    key = torch.arange(-block, n_blocks * block, device=device)
    distance = token[:, None] - key
    full = (distance >= 0) & (key >= 0)
    starts = range(0, n_blocks * block, block)
    return torch.stack([full[start : start + block, start : start + 2 * block] for start in starts])
""",
        line_text=("distance = token[:, None] - key", "full = (distance >= 0) & (key >= 0)"),
        explanation="The local mask is cut from one of all tokens by all tokens: memory grows with the square.",
        needs="black box",
    ),
    Bug(
        name="mask_from_lists",
        kind="host work",
        file="positions.py",
        old="""    query = torch.arange(block, device=device)
    own = query[:, None] >= query
    before = torch.ones(block, block, dtype=torch.bool, device=device)
    visible = torch.cat([before, own], dim=1).repeat(n_blocks, 1, 1)
    visible[0, :, :block] = False
    return visible
""",
        new="""    rows = []
    for token in range(n_blocks * block):
        first = token // block * block - block
        seen = [max(0, first) <= key <= token for key in range(n_blocks * block)]
        rows.append([0 <= key and seen[key] for key in range(first, first + 2 * block)])
    return torch.tensor(rows, device=device).view(n_blocks, block, 2 * block)
""",
        line_text=(
            "seen = [max(0, first) <= key <= token for key in range(n_blocks * block)]",
            "for token in range(n_blocks * block):",
            "return torch.tensor(rows, device=device).view(n_blocks, block, 2 * block)",
        ),
        explanation="The local mask is made in Python, over all tokens for every token, in every call.",
        needs="black box",
    ),
    Bug(
        name="probabilities_pruned_in_place",
        kind="in-place",
        file="local.py",
        old="        probs = scores.softmax(-1)\n",
        new="""        probs = scores.softmax(-1)
        probs.data.masked_fill_(probs.data < 1e-2, 0.0)
""",
        line_text=("probs.data.masked_fill_(probs.data < 1e-2, 0.0)",),
        explanation="Small probabilities are cleared behind autograd's back: softmax's saved output has changed.",
        needs="black box",
    ),
    Bug(
        name="bias_kept_between_calls",
        kind="stale state",
        file="local.py",
        old="""        distance = self.tables.get(landmarks, device)
        return -self.log_slope.exp()[:, None, None] * distance.to(dtype)
""",
        new="""        distance = self.tables.get(landmarks, device)
        if torch.is_grad_enabled():
            return -self.log_slope.exp()[:, None, None] * distance.to(dtype)
        kept = self.__dict__.setdefault("_biases", {})
        key = (landmarks, device, dtype)
        if key not in kept:
            kept[key] = -self.log_slope.exp()[:, None, None] * distance.to(dtype)
        return kept[key]
""",
        line_text=(
            "kept[key] = -self.log_slope.exp()[:, None, None] * distance.to(dtype)",
            "return kept[key]",
            "if key not in kept:",
        ),
        explanation="Without gradients the bias of the first call is used forever, whatever becomes of the slopes.",
        needs="black box",
    ),
    Bug(
        name="scaled_twice_in_eval",
        kind="train and eval",
        file="local.py",
        old="                scale=1.0,\n",
        new="",
        line_text=("mixed = F.scaled_dot_product_attention(",),
        explanation="Queries are scaled already; torch's attention, used in eval only, scales them again.",
        needs="black box",
    ),
    Bug(
        name="strided_view_of_any_input",
        kind="non-contiguous",
        file="utils.py",
        old="    flat = x.contiguous()\n",
        new="    flat = x\n",
        line_text=(
            "flat = x",
            "body = torch.as_strided(flat, (batch, length - 1, width), (length * width, width, 1), "
            "flat.storage_offset())",
        ),
        explanation="Strides are those of a contiguous input; slices and transposes are read at wrong places.",
        needs="black box",
    ),
    Bug(
        name="head_norm_over_batch",
        kind="batch mixing",
        file="norms.py",
        old="        power = wide.square().mean(-1, keepdim=True)\n",
        new="        power = wide.square().mean((0, -1), keepdim=True)\n",
        line_text=("power = wide.square().mean((0, -1), keepdim=True)",),
        explanation="The norm of heads averages over rows of the batch; a row by itself comes out differently.",
        needs="black box",
    ),
    Bug(
        name="gate_reads_detached",
        kind="detached gradient",
        file="local.py",
        old="        gate = torch.sigmoid(self.gate(x)).transpose(1, 2).unsqueeze(-1)\n",
        new="        gate = torch.sigmoid(self.gate(x.detach())).transpose(1, 2).unsqueeze(-1)\n",
        line_text=("gate = torch.sigmoid(self.gate(x.detach())).transpose(1, 2).unsqueeze(-1)",),
        explanation="The gate learns, but its input gets no gradient through it.",
        needs="black box",
    ),
]
