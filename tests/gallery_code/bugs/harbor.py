"""Bugs for the host `harbor`, each a small change of one file."""

from tests.gallery_code.planting import Bug

BUGS = [
    Bug(
        name="window_inclusive",
        kind="sliding window",
        file="masks.py",
        old="    near = distance < window\n",
        new="    near = distance <= window\n",
        line_text=("near = distance <= window",),
        explanation="A window of `window + 1` tokens. The ring is read before it is written, so decoding agrees.",
        needs="adapter",
    ),
    Bug(
        name="ring_wraps_over_sinks",
        kind="ring buffer wrap",
        file="cache.py",
        old="        turn = self.sinks + (index - self.sinks) % self.window\n",
        new="        turn = index % (self.sinks + self.window)\n",
        line_text=(
            "turn = index % (self.sinks + self.window)",
            "return torch.where(index < self.sinks, index, turn)",
        ),
        explanation="Wraps to slot 0: from the first turn on new tokens overwrite the sinks.",
        needs="adapter",
    ),
    Bug(
        name="ring_written_first",
        kind="ring buffer wrap",
        file="cache.py",
        old=(
            "        keys, values = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)\n"
            "        indices = torch.cat((self.index, index))\n"
            "        stays = (index < self.sinks) | (index > index[-1] - self.window)\n"
            "        slots = self.slot(index[stays])\n"
            "        self.k[:, :, slots] = k[:, :, stays]\n"
            "        self.v[:, :, slots] = v[:, :, stays]\n"
            "        self.index[slots] = index[stays]\n"
            "        return keys, values, indices\n"
        ),
        new=(
            "        stays = (index < self.sinks) | (index > index[-1] - self.window)\n"
            "        slots = self.slot(index[stays])\n"
            "        self.k[:, :, slots] = k[:, :, stays]\n"
            "        self.v[:, :, slots] = v[:, :, stays]\n"
            "        self.index[slots] = index[stays]\n"
            "        return self.k, self.v, self.index\n"
        ),
        line_text=(
            "return self.k, self.v, self.index",
            "self.k[:, :, slots] = k[:, :, stays]",
            "self.v[:, :, slots] = v[:, :, stays]",
        ),
        explanation="Right for one token; in a chunk the later ones overwrite what the earlier ones should see.",
        needs="adapter",
    ),
    Bug(
        name="keys_rotated_twice",
        kind="rotary in decode",
        file="attention.py",
        old="            k, v, k_index = cache.update(k, v, context.index)\n",
        new=(
            "            k, v, k_index = cache.update(k, v, context.index)\n"
            "            k = rotate(k, self.rope(k_index.clamp_min(0)[None], k.dtype))\n"
        ),
        line_text=("k = rotate(k, self.rope(k_index.clamp_min(0)[None], k.dtype))",),
        explanation="Keys are rotated before they are cached and once more when they are read.",
        needs="adapter",
    ),
    Bug(
        name="one_query_repeat",
        kind="GQA head mapping",
        file="kernels.py",
        old="    square = q.shape[2] == k.shape[2]\n",
        new=(
            "    square = q.shape[2] == k.shape[2]\n"
            "    if q.shape[2] == 1:  # grouped heads are slow for a single query\n"
            "        repeats = q.shape[1] // k.shape[1]\n"
            "        k, v = k.repeat(1, repeats, 1, 1), v.repeat(1, repeats, 1, 1)\n"
        ),
        line_text=(
            "k, v = k.repeat(1, repeats, 1, 1), v.repeat(1, repeats, 1, 1)",
            "if q.shape[2] == 1:  # grouped heads are slow for a single query",
        ),
        explanation="repeat instead of repeat_interleave: in single steps heads read another group's keys and values.",
        needs="adapter",
    ),
    Bug(
        name="keys_take_query_norm",
        kind="dead parameter",
        file="attention.py",
        old="        k = self.k_norm(self.k_proj(x)",
        new="        k = self.q_norm(self.k_proj(x)",
        line_text=("k = self.q_norm(self.k_proj(x).unflatten(-1, (-1, *size))).transpose(1, 2)",),
        explanation="Keys go through the norm of the queries; k_norm's weight is never read.",
        needs="black box",
    ),
    Bug(
        name="router_weights_detached",
        kind="gradient detached",
        file="moe.py",
        old="        return weights.to(flat.dtype), chosen, probs\n",
        new="        return weights.detach().to(flat.dtype), chosen, probs\n",
        line_text=("return weights.detach().to(flat.dtype), chosen, probs",),
        explanation="The router learns from the balance loss alone; from the output it gets no gradient.",
        needs="black box",
    ),
    Bug(
        name="full_cache_swallowed",
        kind="swallowed exception",
        file="cache.py",
        old=(
            "        self._reserve(end)\n"
            "        self.k[:, :, self.used : end] = k\n"
            "        self.v[:, :, self.used : end] = v\n"
        ),
        new=(
            "        try:\n"
            "            self.k.narrow(2, self.used, k.shape[2]).copy_(k)\n"
            "            self.v.narrow(2, self.used, v.shape[2]).copy_(v)\n"
            "        except RuntimeError:\n"
            "            end = self.used\n"
        ),
        line_text=("except RuntimeError:", "end = self.used", "self.k.narrow(2, self.used, k.shape[2]).copy_(k)"),
        explanation="A full cache takes no more tokens and says nothing: global layers forget what follows.",
        needs="adapter",
    ),
    Bug(
        name="flag_is_any_text",
        kind="flag",
        file="utils.py",
        old="    return value not in _OFF\n",
        new="    return bool(value)\n",
        line_text=("return bool(value)",),
        explanation='The text "0" is true: HARBOR_SDPA=0 and HARBOR_CHECKPOINT=0 switch nothing off.',
        needs="black box",
    ),
    Bug(
        name="chunk_at_least_everything",
        kind="memory growth",
        file="kernels.py",
        old="    return max(16, budget // max(keys, 1))\n",
        new="    return max(keys, budget // max(keys, 1))\n",
        line_text=(
            "return max(keys, budget // max(keys, 1))",
            "scores = (q[:, :, start:end] @ k.transpose(-1, -2)).to(wide) * call.scale",
        ),
        explanation="max where min was meant: one chunk with all queries, S * S scores at a time.",
        needs="black box",
    ),
    Bug(
        name="softcap_after_mask",
        kind="softcap order",
        file="kernels.py",
        old=(
            "        if call.softcap is not None:\n"
            "            scores = call.softcap * torch.tanh(scores / call.softcap)\n"
            "        scores = scores.masked_fill(~mask, torch.finfo(wide).min)\n"
        ),
        new=(
            "        scores = scores.masked_fill(~mask, torch.finfo(wide).min)\n"
            "        if call.softcap is not None:\n"
            "            scores = call.softcap * torch.tanh(scores / call.softcap)\n"
        ),
        line_text=(
            "scores = scores.masked_fill(~mask, torch.finfo(wide).min)",
            "scores = call.softcap * torch.tanh(scores / call.softcap)",
            "probs = softmax_with_sink(scores, call.sink_logits)",
        ),
        explanation="The cap lifts hidden scores to -20: every token sees all later ones, by a factor of exp(-20).",
        needs="black box",
    ),
    Bug(
        name="norm_in_low_precision",
        kind="numerics",
        file="utils.py",
        old="        wide = x.to(compute_dtype(x.dtype))\n",
        new="        wide = x\n",
        line_text=("wide = x", "variance = wide.square().mean(-1, keepdim=True)"),
        explanation="Squares in the input's dtype: in float16 values above 256 overflow and the norm returns zeros.",
        needs="black box",
    ),
    Bug(
        name="experts_write_to_a_copy",
        kind="non-contiguous input",
        file="moe.py",
        old=(
            "        out = torch.zeros_like(flat)\n"
            "        for number, expert in enumerate(self.experts):\n"
            "            rows, slot = torch.where(chosen == number)\n"
            "            if rows.numel():\n"
            "                out = out.index_add(0, rows, expert(flat[rows]) * weights[rows, slot].unsqueeze(-1))\n"
            "        return out.view(x.shape), self.balance_loss(probs, chosen)\n"
        ),
        new=(
            "        out = torch.zeros_like(x)\n"
            "        rows_out = out.reshape(-1, x.shape[-1])\n"
            "        for number, expert in enumerate(self.experts):\n"
            "            rows, slot = torch.where(chosen == number)\n"
            "            if rows.numel():\n"
            "                rows_out.index_add_(0, rows, expert(flat[rows]) * weights[rows, slot].unsqueeze(-1))\n"
            "        return out, self.balance_loss(probs, chosen)\n"
        ),
        line_text=(
            "out = torch.zeros_like(x)",
            "rows_out = out.reshape(-1, x.shape[-1])",
            "rows_out.index_add_(0, rows, expert(flat[rows]) * weights[rows, slot].unsqueeze(-1))",
            "return out, self.balance_loss(probs, chosen)",
        ),
        explanation=(
            "zeros_like keeps the strides of x; where these are not contiguous, as after a transpose, reshape copies "
            "and all that the experts add is lost."
        ),
        needs="black box",
    ),
    Bug(
        name="router_over_tokens",
        kind="expert routing",
        file="moe.py",
        old="        probs = logits.to(compute_dtype(logits.dtype)).softmax(-1)\n",
        new="        probs = logits.to(compute_dtype(logits.dtype)).softmax(0)\n",
        line_text=("probs = logits.to(compute_dtype(logits.dtype)).softmax(0)",),
        explanation="Softmax over the tokens: weights depend on the rest of the batch and on later tokens.",
        needs="black box",
    ),
    Bug(
        name="expert_capacity",
        kind="expert routing",
        file="moe.py",
        old="            rows, slot = torch.where(chosen == number)\n",
        new=(
            "            rows, slot = torch.where(chosen == number)\n"
            "            capacity = int(1.25 * self.top * flat.shape[0] / len(self.experts)) + 1\n"
            "            rows, slot = rows[:capacity], slot[:capacity]\n"
        ),
        line_text=(
            "rows, slot = rows[:capacity], slot[:capacity]",
            "capacity = int(1.25 * self.top * flat.shape[0] / len(self.experts)) + 1",
        ),
        explanation="Experts have room for a share of the call's tokens: who is dropped depends on the other ones.",
        needs="black box",
    ),
    Bug(
        name="frequencies_follow_longest",
        kind="state of previous calls",
        file="rope.py",
        old="        frequency = self._frequencies.to(positions.device)\n",
        new=(
            "        longest = int(positions.max()) + 1\n"
            "        if longest > self.scaling.original_length:\n"
            "            stretch = longest / self.scaling.original_length\n"
            "            base = self.base * stretch ** (self.head_dim / (self.head_dim - 2))\n"
            "            self._frequencies = frequencies(self.head_dim, base, self.scaling)\n"
            "        frequency = self._frequencies.to(positions.device)\n"
        ),
        line_text=(
            "self._frequencies = frequencies(self.head_dim, base, self.scaling)",
            "if longest > self.scaling.original_length:",
            "base = self.base * stretch ** (self.head_dim / (self.head_dim - 2))",
        ),
        explanation="A long call changes the frequencies for good: a short one afterwards gives another result.",
        needs="black box",
    ),
    Bug(
        name="dropout_in_eval",
        kind="train and eval",
        file="attention.py",
        old="            dropout=self.config.dropout if self.training else 0.0,\n",
        new="            dropout=self.config.dropout,\n",
        line_text=("dropout=self.config.dropout,",),
        explanation="The functional forms know no eval(): attention drops probabilities there too.",
        needs="black box",
    ),
    Bug(
        name="mean_of_means",
        kind="accumulation",
        file="training.py",
        old=(
            "            loss = error / tokens + self.config.balance_weight * balance / len(batches)\n"
            "            loss.backward()\n"
        ),
        new=(
            "            loss = error / batch.counted.sum() + self.config.balance_weight * balance\n"
            "            (loss / len(batches)).backward()\n"
        ),
        line_text=(
            "loss = error / batch.counted.sum() + self.config.balance_weight * balance",
            "(loss / len(batches)).backward()",
        ),
        explanation="Micro-batches weigh the same however few tokens count in them; one without any makes NaN.",
        needs="adapter",
    ),
    Bug(
        name="clipped_per_micro_batch",
        kind="clipping",
        file="training.py",
        old=(
            "            reported += float(error.detach()) / tokens\n"
            "        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)\n"
        ),
        new=(
            "            reported += float(error.detach()) / tokens\n"
            "            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)\n"
        ),
        line_text=("norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)",),
        explanation="Clips what has been accumulated so far after every micro-batch: the first ones shrink most.",
        needs="adapter",
    ),
    Bug(
        name="best_is_an_alias",
        kind="snapshot",
        file="training.py",
        old=(
            "            self.best_state = {name: value.detach().clone() "
            "for name, value in self.model.state_dict().items()}\n"
        ),
        new="            self.best_state = dict(self.model.state_dict())\n",
        line_text=("self.best_state = dict(self.model.state_dict())",),
        explanation="state_dict shares memory with the parameters: the best weights go on training.",
        needs="adapter",
    ),
    Bug(
        name="recompute_with_other_dropout",
        kind="checkpoint",
        file="model.py",
        old="checkpoint(self.attention, attended, context, cache, use_reentrant=False)\n",
        new=(
            "checkpoint(\n"
            "                self.attention, attended, context, cache, use_reentrant=False, preserve_rng_state=False\n"
            "            )\n"
        ),
        line_text=(
            "attended = checkpoint(",
            "self.attention, attended, context, cache, use_reentrant=False, preserve_rng_state=False",
        ),
        explanation="Saves the copy of the generator's state; backward then belongs to another dropout mask.",
        needs="black box",
    ),
    Bug(
        name="short_documents_merge",
        kind="packed leak",
        file="masks.py",
        old="(position_ids[:, 1:] != position_ids[:, :-1] + 1).to(starts.dtype)\n",
        new="(position_ids[:, 1:] < position_ids[:, :-1]).to(starts.dtype)\n",
        line_text=("starts[:, 1:] = (position_ids[:, 1:] < position_ids[:, :-1]).to(starts.dtype)",),
        explanation="Positions do not fall behind a document of one token: it and the next one see each other.",
        needs="adapter",
    ),
    Bug(
        name="padding_forgotten_in_plain",
        kind="padding leak",
        file="kernels.py",
        old="        return self.window is None and self.segments is None and self.padding is None\n",
        new="        return self.window is None and self.segments is None\n",
        line_text=(
            "return self.window is None and self.segments is None",
            "if call.plain and square:",
            'options["is_causal"] = True',
        ),
        explanation="Global layers take the causal fast path with padding too; left padding is attended to.",
        needs="adapter",
    ),
    Bug(
        name="length_is_last_index",
        kind="decode cache",
        file="model.py",
        old="        cache.length += context.index.shape[0]\n",
        new="        cache.length = int(context.index[-1])\n",
        line_text=("cache.length = int(context.index[-1])",),
        explanation="One short: the next token takes the last one's position, and its slot in the ring.",
        needs="adapter",
    ),
    Bug(
        name="empty_slots_visible",
        kind="decode cache",
        file="masks.py",
        old="    mask = (distance >= 0) & (k_index >= 0)\n",
        new="    mask = distance >= 0\n",
        line_text=("mask = distance >= 0", "return mask & (near | (k_index < sink_tokens))"),
        explanation="Index -1 counts as a sink: until the ring is full its empty slots take part as zero keys.",
        needs="adapter",
    ),
    Bug(
        name="residual_in_callers_tensor",
        kind="in-place",
        file="model.py",
        old="        x = x + F.dropout(attended, self.dropout, self.training)\n",
        new=(
            "        attended = F.dropout(attended, self.dropout, self.training)\n"
            "        x = x + attended if torch.is_grad_enabled() else x.add_(attended)\n"
        ),
        line_text=("x = x + attended if torch.is_grad_enabled() else x.add_(attended)",),
        explanation="Saves memory in inference, and writes into the embeddings that the caller passed in.",
        needs="black box",
    ),
    Bug(
        name="positions_in_input_dtype",
        kind="dtype",
        file="rope.py",
        old="        angle = positions.to(torch.float64)[..., None] * frequency\n",
        new="        angle = positions.to(dtype)[..., None] * frequency\n",
        line_text=("angle = positions.to(dtype)[..., None] * frequency",),
        explanation="bfloat16 holds whole numbers up to 256: beyond, neighbours share a position.",
        needs="black box",
    ),
]
