"""Odd variants of mosaic that are right."""

from tests.gallery_code.planting import Variant

VARIANTS = [
    Variant(
        name="zero_output_projections",
        file="factory.py",
        old="    return MosaicStack(MosaicConfig())\n",
        new="    return MosaicStack(MosaicConfig(zero_out=True))\n",
        explanation="Mixers put out zeros at first; their output projections have gradients and learn.",
    ),
    Variant(
        name="loops_over_odd_chunks",
        file="factory.py",
        old="    return MosaicStack(MosaicConfig())\n",
        new='    return MosaicStack(MosaicConfig(scan="loop", chunk=13))\n',
        explanation="A Python loop over chunks of 13 tokens: the same sums, in another order.",
    ),
    Variant(
        name="one_network_for_all_blocks",
        file="factory.py",
        old="    return MosaicStack(MosaicConfig())\n",
        new="    return MosaicStack(MosaicConfig(tie_ffn=True))\n",
        explanation="Blocks share one feed-forward network on purpose; its gradient is the sum.",
    ),
    Variant(
        name="table_by_exception",
        file="positions.py",
        old="""        if key not in self._kept:
            distance = local_distance(self.block, device)
            if landmarks:
                distance = torch.cat([distance, landmark_distance(self.block, self.count, device)], dim=1)
            self._kept[key] = distance
        return self._kept[key]
""",
        new="""        try:
            return self._kept[key]
        except KeyError:
            distance = local_distance(self.block, device)
            if landmarks:
                distance = torch.cat([distance, landmark_distance(self.block, self.count, device)], dim=1)
            self._kept[key] = distance
            return distance
""",
        explanation="A missing entry is noticed by its exception, made and kept; it depends on geometry alone.",
    ),
    Variant(
        name="convolution_backwards_in_time",
        file="conv.py",
        old="""        padded = F.pad(x.transpose(1, 2), (self.width - 1, 0))
        mixed = F.conv1d(padded, self.weight, self.bias, groups=self.channels)[..., :length]
        return F.silu(mixed).transpose(1, 2)
""",
        new="""        padded = F.pad(x.transpose(1, 2).flip(-1), (0, self.width - 1))
        mixed = F.conv1d(padded, self.weight.flip(-1), self.bias, groups=self.channels)[..., :length]
        return F.silu(mixed.flip(-1)).transpose(1, 2)
""",
        explanation="Time is turned round, padded behind, filtered with turned filters and turned back: causal.",
    ),
    Variant(
        name="every_scan_falls_back",
        file="scan.py",
        old="    if length < 2 * chunk:\n",
        new="    if length < 1_000_000 * chunk:\n",
        explanation="The parallel scan always declines, by an exception, and the loop does the same sums.",
    ),
]
