"""Odd edits of the hosts that stay right, and hosts as they are in odd calls."""

from tests.gallery_functions.files import (
    BANDED,
    CAPPED,
    CHECKPOINTED,
    CHUNKS,
    DECODE,
    FLEX,
    PACKED,
    SAVED,
    SPLIT_K,
    TILED,
    TWO_PASS,
    VARLEN,
)
from tests.gallery_functions.planting import Healthy
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
KEY_TILES = "            for n0 in range(lo, hi, BLOCK_N):\n"

HEALTHY = [
    Healthy(
        name="HEALTHY_ODD_TILES",
        host=TILED,
        edits=(("BLOCK_M = 32\nBLOCK_N = 32\n", "BLOCK_M = 23\nBLOCK_N = 19\n"),),
        says="Tiles of 23 queries and 19 keys.",
        scene=Scene(options=CAUSAL | {"window": (19, 0)}),
    ),
    Healthy(
        name="HEALTHY_KEYS_FROM_THE_LAST",
        host=TILED,
        edits=((KEY_TILES, KEY_TILES.replace("range(lo, hi, BLOCK_N)", "reversed(range(lo, hi, BLOCK_N))")),),
        says="Tiles of keys are read from the last to the first.",
        scene=Scene(options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_TILES_IN_RANDOM_ORDER",
        host=TILED,
        edits=(
            ("import math\n", "import math\nimport random\n"),
            ("BLOCK_N = 32\n", "BLOCK_N = 8\n_ORDER = random.Random()\n"),
            (
                KEY_TILES,
                """            tiles = list(range(lo, hi, BLOCK_N))
            _ORDER.shuffle(tiles)
            for n0 in tiles:
""",
            ),
        ),
        says="Tiles of keys come in another order every time: equal calls differ by rounding.",
        scene=Scene(options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_P_ROUNDED_TO_INPUT_DTYPE",
        host=TILED,
        edits=(
            (
                "acc = acc * alpha[..., None] + torch.matmul(p, vh[..., n0:n1, :])\n",
                "acc = acc * alpha[..., None] + torch.matmul(p.to(q.dtype).to(p.dtype), vh[..., n0:n1, :])\n",
            ),
        ),
        says="P is rounded to the inputs' dtype before P V, as tensor cores need it: bfloat16 under bfloat16 alone.",
        scene=Scene(dtype="bfloat16", options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_OUTPUT_NOT_CONTIGUOUS",
        host=TILED,
        edits=((".transpose(1, 2).contiguous().to(like.dtype)", ".transpose(1, 2).to(like.dtype)"),),
        says="The output and the gradients are transposed views.",
        scene=Scene(options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_LSE_ALWAYS",
        host=TILED,
        edits=(("    return_attn_probs=False,\n", "    return_attn_probs=True,\n"),),
        says="The answer is a tuple (output, lse, None) by default.",
        scene=Scene(kv_heads=2, options=CAUSAL | {"softcap": 4.0}),
    ),
    Healthy(
        name="HEALTHY_CHUNKS_OF_SEVEN",
        host=TWO_PASS,
        edits=(("CHUNK = 48\n", "CHUNK = 7\n"),),
        says="Chunks of seven keys.",
        scene=Scene(options=CAUSAL | {"mask": "float"}),
    ),
    Healthy(
        name="HEALTHY_WARNS_ONCE",
        host=TWO_PASS,
        edits=(
            ("import math\n", "import math\nimport warnings\n"),
            ("CHUNK = 48\n", "CHUNK = 48\n_warned = []\n"),
            (
                "    if enable_gqa:\n",
                """    if not _warned:
        _warned.append(True)
        warnings.warn("two_pass_attention is slow: use it for debugging", stacklevel=2)
    if enable_gqa:
""",
            ),
        ),
        says="The first call warns.",
        scene=Scene(options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_REFUSES_HEAD_SIZES",
        host=TWO_PASS,
        edits=(
            (
                "    if scale is None:\n",
                """    if query.shape[-1] not in (16, 32, 64, 128):
        raise ValueError(f"head sizes are 16, 32, 64 and 128, got {query.shape[-1]}")
    if scale is None:
""",
            ),
        ),
        says="Four head sizes are served, and others refused by a ValueError.",
        scene=Scene(options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_ZERO_ROWS",
        host=TWO_PASS,
        says="Queries whose mask hides every key are exactly zero, with gradients of zero.",
        scene=Scene(options={"mask": "rows"}),
    ),
    Healthy(
        name="HEALTHY_DROPOUT_OF_ITS_OWN",
        host=TWO_PASS,
        says="Dropout is drawn for the whole matrix at once; gradients are those of what was drawn.",
        scene=Scene(queries=50, dtype="float64", history="seeded dropout", options=CAUSAL | {"dropout": 0.3}),
    ),
    Healthy(
        name="HEALTHY_SEQUENCES_FROM_THE_LAST",
        host=VARLEN,
        edits=(
            (
                """, cu_k.tolist()
        for i in range(len(bounds_q) - 1):
""",
                """, cu_k.tolist()
        for i in reversed(range(len(bounds_q) - 1)):
""",
            ),
        ),
        says="Packed sequences are served from the last to the first.",
        scene=Scene(lengths=(30, 41, 17), key_lengths=(33, 0, 20), kv_heads=2, options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_SPLITS_BY_BATCH",
        host=DECODE,
        edits=(
            (
                "    longest = int(total.max())\n",
                "    longest = int(total.max())\n    split = 7 if batch > 2 else SPLIT\n",
            ),
            (
                """    for start in range(0, longest, SPLIT):
        stop = min(start + SPLIT, longest)
""",
                """    for start in range(0, longest, split):
        stop = min(start + split, longest)
""",
            ),
        ),
        says="How keys are split depends on the batch: a row alone differs by rounding.",
        scene=Scene(lengths=(5, 37, 64), queries=2, new_tokens=2, kv_heads=2, capacity=96, options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_WINDOW_AS_BAND",
        host=BANDED,
        says="Windows alone: what it does not serve is refused by a ValueError.",
        scene=Scene(layout="fused", options=CAUSAL | {"window": (31, 0)}),
    ),
    Healthy(
        name="HEALTHY_WHOLE_BLOCKS_ALONE",
        host=BANDED,
        edits=(
            (
                "    scale = softmax_scale or",
                """    if q.shape[1] % 16:
        raise ValueError(f"lengths are multiples of 16, got {q.shape[1]}")
    scale = softmax_scale or""",
            ),
        ),
        says="Lengths that are no multiple of 16 are refused by a ValueError.",
        scene=Scene(queries=80, options=CAUSAL | {"window": (31, 0)}),
    ),
    Healthy(
        name="HEALTHY_ODD_ROWS",
        host=PACKED,
        edits=(("ROWS = 64\nHEADS_AT_ONCE = 2\n", "ROWS = 37\nHEADS_AT_ONCE = 3\n"),),
        says="37 packed rows and three key heads at a time.",
        scene=Scene(heads=8, kv_heads=4, options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_DELTA_FROM_P",
        host=CAPPED,
        edits=(
            (
                "dscores = probs * (dprobs - delta[:, :, start:stop, None])\n",
                "dscores = probs * (dprobs - (probs * dprobs).sum(-1, keepdim=True))\n",
            ),
        ),
        says="delta is the sum of P dP, not of dO O.",
        scene=Scene(options=CAUSAL | {"softcap": 4.0, "alibi": "rows"}),
    ),
    Healthy(
        name="HEALTHY_LEARNED_SINKS",
        host=CAPPED,
        says="A learned logit for each head takes weight and gives nothing.",
        scene=Scene(options=CAUSAL | {"sinks": True}),
    ),
    Healthy(
        name="HEALTHY_ALIBI_BEHIND_A_CACHE",
        host=CAPPED,
        says="ALiBi with fewer queries than keys, distances from the last one.",
        scene=Scene(queries=30, keys=70, options=CAUSAL | {"alibi": "heads"}),
    ),
    Healthy(
        name="HEALTHY_BLOCKS_AS_THEY_COME",
        host=FLEX,
        edits=(("    return sorted(found)\n", "    return found[::-1]\n"),),
        says="Selected blocks are gathered in reversed order, full ones first.",
        scene=Scene(batch=1, heads=2, queries=60, options=CAUSAL | {"block_mask": "selected", "score_mod": "capped"}),
    ),
    Healthy(
        name="HEALTHY_CHECKPOINTED_FIVES",
        host=CHECKPOINTED,
        edits=(
            ("CHUNK = 32\n", "CHUNK = 5\n"),
            ("use_reentrant=False)", "use_reentrant=False, preserve_rng_state=False)"),
        ),
        says="Chunks of five queries, each recomputed in backward.",
        scene=Scene(kv_heads=2, options=CAUSAL | {"mask": "padding"}),
    ),
    Healthy(
        name="HEALTHY_SINKS_OF_A_MODULE",
        host=CHECKPOINTED,
        says="Sinks come as s_aux, as transformers hands them over.",
        scene=Scene(options=CAUSAL | {"sinks": True}),
    ),
    Healthy(
        name="HEALTHY_PROBABILITIES_KEPT",
        host=SAVED,
        says="Probabilities are kept in the inputs' dtype: bfloat16 under bfloat16.",
        scene=Scene(dtype="bfloat16", options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_OWN_WORKSPACE",
        host=SAVED,
        edits=(
            ("class FusedAttention(", "_SCORES = {}\n\n\nclass FusedAttention("),
            (
                "        attn = torch.matmul(q, k.transpose(-2, -1))\n",
                """        shape = (*q.shape[:-1], k.shape[-2])
        attn = _SCORES.setdefault((shape, q.dtype), torch.empty(shape, dtype=q.dtype, device=q.device))
        torch.matmul(q, k.transpose(-2, -1), out=attn)
""",
            ),
        ),
        says="Scores are written in place into a buffer for each shape, which nothing that is kept shares.",
        scene=Scene(history="two forwards before backward", options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_LEARNED_BIAS",
        host=SAVED,
        says="A float mask that is broadcast over batch and queries gets its gradient.",
        scene=Scene(options={"mask": "learned"}),
    ),
    Healthy(
        name="HEALTHY_FIVE_WORKERS",
        host=SPLIT_K,
        edits=(("TILE = 16\nNUM_SPLITS = 3\n", "TILE = 11\nNUM_SPLITS = 5\n"),),
        says="Five workers with tiles of eleven keys.",
        scene=Scene(kv_heads=2, options=CAUSAL | {"lse": True}),
    ),
    Healthy(
        name="HEALTHY_WORKERS_BY_BATCH",
        host=SPLIT_K,
        edits=(
            ("def _split_bounds(num_tiles):\n", "def _split_bounds(num_tiles, num_splits=NUM_SPLITS):\n"),
            ("per_split = -(-num_tiles // NUM_SPLITS)\n", "per_split = -(-num_tiles // num_splits)\n"),
            ("_split_bounds(kh.shape[2] // TILE)", "_split_bounds(kh.shape[2] // TILE, 5 - min(q.shape[0], 4))"),
        ),
        says="Fewer workers share the keys of a larger batch: a row alone differs by rounding.",
        scene=Scene(options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_QUERIES_BEFORE_FIRST_KEY",
        host=SPLIT_K,
        says="More queries than keys: the first ones see nothing, and are exactly zero.",
        scene=Scene(queries=70, keys=50, options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_PEAK_WITH_ITS_GRADIENT",
        host=CHUNKS,
        edits=(("scores.amax(-1, keepdim=True).detach()\n", "scores.amax(-1, keepdim=True)\n"),),
        says="The maximum is not detached: its gradient cancels.",
        scene=Scene(options=CAUSAL),
    ),
    Healthy(
        name="HEALTHY_LARGE_LOGITS",
        host=CHUNKS,
        says="Logits in the hundreds, where softmax is nearly hard.",
        scene=Scene(gain=50.0, kv_heads=2, options=CAUSAL),
    ),
]
