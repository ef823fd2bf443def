"""Odd variants of quarry that are right."""

from tests.gallery_code.planting import Variant

VARIANTS = [
    Variant(
        name="zero_output_projections",
        file="factory.py",
        old="    return QuarryStack(QuarryConfig())\n",
        new="    return QuarryStack(QuarryConfig(zero_out=True))\n",
        explanation="Attention and experts put out zeros at first; their last projections have gradients and learn.",
    ),
    Variant(
        name="fused_always_declines",
        file="fused.py",
        old="ALIGN = 8\n",
        new="ALIGN = 4096\n",
        explanation="The fused softmax always declines, by an exception, and plain operations do the same.",
    ),
    Variant(
        name="one_up_projection_for_experts",
        file="moe.py",
        old="        self.shared = Expert(cfg.dim, cfg.shared_dim)\n",
        new="""        self.shared = Expert(cfg.dim, cfg.shared_dim)
        for expert in self.experts[1:]:
            expert.up = self.experts[0].up
""",
        explanation="Routed experts share one up-projection on purpose; its gradient is the sum.",
    ),
    Variant(
        name="selection_in_order_of_position",
        file="indexer.py",
        old="        return index[..., :count], best[..., :count] > -torch.inf\n",
        new="""        chosen = index[..., :count].sort(dim=-1)
        return chosen.values, best[..., :count].gather(-1, chosen.indices) > -torch.inf
""",
        explanation="Selected tokens are put in order of position with their validity; softmax knows no order.",
    ),
    Variant(
        name="odd_chunks",
        file="factory.py",
        old="    return QuarryStack(QuarryConfig())\n",
        new="    return QuarryStack(QuarryConfig(query_chunk=7, prefill_chunk=11, capacity=3))\n",
        explanation="Chunks of seven queries, prompts in pieces of eleven, a cache that grows often: the same numbers.",
    ),
    Variant(
        name="absorbed_everywhere",
        file="latent.py",
        old="        return self._chunked(x, self._tokens(x, 0), 0, absorb(decoding=False))\n",
        new="        return self._chunked(x, self._tokens(x, 0), 0, absorb(decoding=True))\n",
        explanation="The whole pass absorbs too, as decoding does; key and value projections are read as weights.",
    ),
]
