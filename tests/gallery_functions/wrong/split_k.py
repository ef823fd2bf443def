"""Wrong edits of the split attention in base 2."""

from tests.gallery_functions.files import SPLIT_K
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="SPLIT_K_BASES_MIXED",
        host=SPLIT_K,
        kind="lse",
        tensors=("dk", "dq", "dv"),
        edits=(("ctx.save_for_backward(q, k, v, out, lse2)\n", "ctx.save_for_backward(q, k, v, out, lse2 * LN2)\n"),),
        says="The natural logsumexp is saved where backward takes one in base 2.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SPLIT_K_LSE_IN_BASE_2",
        host=SPLIT_K,
        kind="lse",
        tensors=("lse",),
        edits=(("lse = lse2 * LN2\n", "lse = lse2 * 1.0\n"),),
        says="The logsumexp that is returned is in base 2.",
        scene=Scene(options=CAUSAL | {"lse": True}),
    ),
    Wrong(
        name="SPLIT_K_LOG2E_OF_THREE_DIGITS",
        host=SPLIT_K,
        kind="scale",
        tensors=ALL,
        edits=(("LOG2E = math.log2(math.e)\n", "LOG2E = 1.44\n"),),
        says="log2(e) has three digits: all logits are off by 0.2 %.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SPLIT_K_LAST_TILES_DROPPED",
        host=SPLIT_K,
        kind="split",
        tensors=ALL,
        edits=(
            (
                "    per_split = -(-num_tiles // NUM_SPLITS)\n",
                """    per_split = max(num_tiles // NUM_SPLITS, 1)
    num_tiles = min(num_tiles, per_split * NUM_SPLITS)
""",
            ),
        ),
        says="Tiles that three workers do not share evenly are left out: right at 48, 96 and 144 keys.",
        scene=Scene(),
        right_with={"queries": 96},
    ),
    Wrong(
        name="SPLIT_K_ZEROS_IN_SOFTMAX",
        host=SPLIT_K,
        kind="padding in the softmax",
        tensors=ALL,
        edits=(("mask = (cols < seqlen_k).expand(", "mask = (cols >= 0).expand("),),
        says="Zeros behind the last key take part in the softmax: right at multiples of 16, and where it is causal.",
        scene=Scene(),
        right_with={"queries": 64},
    ),
    Wrong(
        name="SPLIT_K_SUM_NOT_RESCALED",
        host=SPLIT_K,
        kind="online softmax",
        tensors=ALL,
        edits=(("total = total * correction + p.sum(-1)\n", "total = total + p.sum(-1)\n"),),
        says="The sum is not rescaled when the maximum grows: right while a worker has one tile.",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 48},
    ),
    Wrong(
        name="SPLIT_K_NAN_IN_EMPTY_ROWS",
        host=SPLIT_K,
        kind="fully masked rows",
        tensors=("dk", "dq", "out"),
        edits=(("safe = torch.where(total == 0, 1.0, total)\n", "safe = total\n"),),
        says="Queries before the first key divide by zero: more queries than keys, causal.",
        scene=Scene(queries=70, keys=50, options=CAUSAL),
        right_with={"keys": 0},
    ),
    Wrong(
        name="SPLIT_K_DK_SHIFTED_BY_PADDING",
        host=SPLIT_K,
        kind="last partial tile",
        tensors=("dk",),
        edits=(("dk = (dk * scale)[:, :, :seqlen_k]", "dk = (dk * scale)[:, :, -seqlen_k:]"),),
        says="dk is cut at the front, not behind: shifted where S is no multiple of 16.",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 64},
    ),
    Wrong(
        name="SPLIT_K_DV_SUMMED_OVER_WRONG_HEADS",
        host=SPLIT_K,
        kind="grouped gradient",
        tensors=("dv",),
        edits=(
            (
                "dv = dv[:, :, :seqlen_k].unflatten(1, (kv_heads, groups)).sum(2)",
                "dv = dv[:, :, :seqlen_k].unflatten(1, (groups, kv_heads)).sum(1)",
            ),
        ),
        says="dv is summed over heads of different groups.",
        scene=Scene(kv_heads=2, options=CAUSAL),
        right_with={"kv_heads": 0},
    ),
    Wrong(
        name="SPLIT_K_FIVE_TILES_A_WORKER",
        host=SPLIT_K,
        kind="long sequences",
        tensors=ALL,
        edits=(("for tile in range(*tiles):\n", "for tile in range(tiles[0], min(tiles[1], tiles[0] + 5)):\n"),),
        says="A worker does five tiles at most: keys are lost beyond 240.",
        scene=Scene(batch=1, heads=2, queries=280, options=CAUSAL),
        right_with={"queries": 240},
    ),
    Wrong(
        name="SPLIT_K_OUTPUT_BUFFER_KEPT",
        host=SPLIT_K,
        kind="state between calls",
        tensors=("out",),
        edits=(
            ("LN2 = math.log(2.0)\n", "LN2 = math.log(2.0)\n_OUT = {}\n"),
            (
                "out = torch.empty(q.shape[0], q.shape[1], q.shape[2], v.shape[-1], dtype=q.dtype, device=q.device)\n",
                """shape = (*q.shape[:3], v.shape[-1])
        out = _OUT.setdefault((shape, q.dtype), torch.empty(shape, dtype=q.dtype, device=q.device)).detach()
""",
            ),
        ),
        line=("out = _OUT.setdefault((shape, q.dtype), torch.empty(shape, dtype=q.dtype, device=q.device)).detach()",),
        says="The output is a buffer for each shape: an answer that is kept changes with the next call.",
        scene=Scene(history="answer kept", options=CAUSAL),
        right_with={"history": "one call"},
    ),
    Wrong(
        name="SPLIT_K_DEFAULT_SCALE_IN_BACKWARD",
        host=SPLIT_K,
        kind="scale of a gradient",
        tensors=("dk", "dq", "dv"),
        edits=(("work, scale = lse2.dtype, ctx.scale\n", "work, scale = lse2.dtype, q.shape[-1] ** -0.5\n"),),
        says="Backward takes the default scale whatever was given.",
        scene=Scene(options=CAUSAL | {"scale": 0.4}),
        right_with={"options": {"causal": True}},
    ),
    Wrong(
        name="SPLIT_K_DQ_LACKS_LAST_TILE",
        host=SPLIT_K,
        kind="last partial tile",
        tensors=("dq",),
        edits=(
            (
                "            dq += ds @ kh[:, :, cols]\n",
                """            if col0 + TILE <= seqlen_k or seqlen_k < TILE:
                dq += ds @ kh[:, :, cols]
""",
            ),
        ),
        says="dq lacks what the last partial tile of keys gives (S % 16 != 0).",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 64},
    ),
    Wrong(
        name="SPLIT_K_BACKWARD_MASK_SHIFTED",
        host=SPLIT_K,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(("mask = _tile_mask(col0, seqlen_q,", "mask = _tile_mask(col0 + 1, seqlen_q,"),),
        says="Backward hides each query's own key, and the last one of all.",
        scene=Scene(options=CAUSAL),
    ),
]
