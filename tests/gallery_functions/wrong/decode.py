"""Wrong edits of decoding against a cache; there is no backward pass."""

from tests.gallery_functions.files import DECODE
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ROWS = (5, 37, 64)

WRONG = [
    Wrong(
        name="DECODE_READS_BEYOND_LENGTH",
        host=DECODE,
        kind="cache lengths",
        tensors=("out",),
        edits=(
            (
                "(cols[None, :] < total[:, None])",
                "(cols[None, :] < (total[:, None] + SPLIT - 1) // SPLIT * SPLIT)",
            ),
        ),
        says="The length of a row is rounded up to a whole split: what lies behind it in the cache is read.",
        scene=Scene(lengths=ROWS, queries=1, capacity=96),
        right_with={"lengths": (64, 64)},
    ),
    Wrong(
        name="DECODE_LENGTH_OF_FIRST_ROW",
        host=DECODE,
        kind="cache lengths",
        tensors=("out",),
        edits=(("total = cache_seqlens.clone()\n", "total = cache_seqlens[:1].repeat(batch)\n"),),
        says="The length of the first row serves all rows.",
        scene=Scene(lengths=ROWS, queries=1, capacity=96, options=CAUSAL),
        right_with={"lengths": (37, 37)},
    ),
    Wrong(
        name="DECODE_NEW_TOKENS_UNSEEN",
        host=DECODE,
        kind="cache lengths",
        tensors=("out",),
        edits=(("        total += k.shape[1]\n", ""),),
        line=("_append(v_cache, v, cache_seqlens)", "total = cache_seqlens.clone()"),
        says="Tokens that are written to the cache in this call are not seen.",
        scene=Scene(lengths=ROWS, queries=1, new_tokens=1, capacity=96, options=CAUSAL),
    ),
    Wrong(
        name="DECODE_SPLITS_COMBINED_IN_BASE_2",
        host=DECODE,
        kind="split",
        tensors=("out",),
        edits=(("weight = torch.exp(lse - peak", "weight = torch.exp2(lse - peak"),),
        says="Splits are weighted by powers of 2 of natural logarithms: right up to 32 keys.",
        scene=Scene(lengths=ROWS, queries=1, capacity=96, options=CAUSAL),
        right_with={"lengths": (5, 32)},
    ),
    Wrong(
        name="DECODE_WRITES_AT_LENGTH_OF_FIRST_ROW",
        host=DECODE,
        kind="cache lengths",
        tensors=("k_cache", "out", "v_cache"),
        edits=(("start = int(lengths[row])\n", "start = int(lengths[0])\n"),),
        says="New tokens of every row are written behind the first row's length, over older ones.",
        scene=Scene(lengths=ROWS, queries=1, new_tokens=1, capacity=96, options=CAUSAL),
    ),
    Wrong(
        name="DECODE_NEW_TOKENS_SEE_EACH_OTHER",
        host=DECODE,
        kind="causal mask",
        tensors=("out",),
        edits=(("cols <= position[..., None] + right", "cols <= position[:, -1:, None] + right"),),
        says="Several new tokens see those after them: right for one token a call.",
        scene=Scene(lengths=ROWS, queries=3, new_tokens=3, capacity=96, options=CAUSAL),
        right_with={"queries": 1, "new_tokens": 1},
    ),
    Wrong(
        name="DECODE_WINDOW_LONG_BY_ONE",
        host=DECODE,
        kind="window",
        tensors=("out",),
        edits=(("cols >= position[..., None] - left", "cols >= position[..., None] - left - 1"),),
        says="A window of W keys sees W + 1.",
        scene=Scene(lengths=ROWS, queries=1, capacity=96, options=CAUSAL | {"window": (15, 0)}),
    ),
    Wrong(
        name="DECODE_LAST_SPLIT_DROPPED",
        host=DECODE,
        kind="last partial tile",
        tensors=("out",),
        edits=(
            ("longest = int(total.max())\n", "longest = max(int(total.max()) // SPLIT, 1) * SPLIT\n"),
            ("stop = min(start + SPLIT, longest)\n", "stop = min(start + SPLIT, k_cache.shape[1])\n"),
        ),
        line=("longest = max(int(total.max()) // SPLIT, 1) * SPLIT",),
        says="The last partial split of the longest row is left out, the newest keys with it (more than 32).",
        scene=Scene(lengths=(5, 37, 60), queries=1, capacity=96, options=CAUSAL),
        right_with={"lengths": (5, 64)},
    ),
]
