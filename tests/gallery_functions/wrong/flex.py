"""Wrong edits of the block-sparse attention."""

from tests.gallery_functions.files import FLEX
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

ALL = ("dk", "dq", "dv", "out")
CAUSAL = {"causal": True, "block_mask": "causal"}
SELECTED = {"causal": True, "block_mask": "selected"}
SMALL = {"batch": 1, "heads": 2, "queries": 60}

WRONG = [
    Wrong(
        name="FLEX_MASK_OF_BLOCK_POSITIONS_IN_BACKWARD",
        host=FLEX,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                """cols[None, :]) | ~partial
                    p = torch.exp(s.detach()""",
                """cols[None, :] % size) | ~partial
                    p = torch.exp(s.detach()""",
            ),
        ),
        line=("allowed = block_mask.mask_mod(bi, hi, rows[:, None], cols[None, :] % size) | ~partial",),
        says="Backward asks the mask function for positions within the block of keys.",
        scene=Scene(**SMALL, options=CAUSAL),
    ),
    Wrong(
        name="FLEX_FULL_BLOCKS_LEFT_OUT",
        host=FLEX,
        kind="selected blocks",
        tensors=ALL,
        edits=(
            ("    if block_mask.full_kv_num_blocks is not None:\n", "    if block_mask.kv_num_blocks.max() == 0:\n"),
        ),
        says="Full blocks are read only where there are no partial ones.",
        scene=Scene(**SMALL, options=CAUSAL),
    ),
    Wrong(
        name="FLEX_SCORE_MOD_WITHOUT_DERIVATIVE",
        host=FLEX,
        kind="softcap",
        tensors=("dk", "dq"),
        edits=(
            (
                """                    if ctx.score_mod is not None:
                        (ds,) = torch.autograd.grad(s, raw, ds)
""",
                "",
            ),
        ),
        line=("ds = p * (do[b, h, here] @ vj.mT - delta[b, h, here])",),
        says="The derivative of score_mod is taken for 1: right for biases, wrong for caps.",
        scene=Scene(**SMALL, options=SELECTED | {"score_mod": "capped"}),
        right_with={"options": {"block_mask": "selected", "score_mod": "distance"}},
    ),
    Wrong(
        name="FLEX_SCORE_MOD_FORGOTTEN_IN_BACKWARD",
        host=FLEX,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "s = raw if ctx.score_mod is None else ctx.score_mod(raw, bi, hi, rows[:, None], cols[None, :])\n",
                "s = raw * 1.0\n",
            ),
        ),
        says="P is recomputed without score_mod.",
        scene=Scene(**SMALL, options=SELECTED | {"score_mod": "distance"}),
    ),
    Wrong(
        name="FLEX_BLOCKS_OF_FIRST_HEAD",
        host=FLEX,
        kind="selected blocks",
        tensors=ALL,
        edits=(("h if counts.shape[1] > 1 else 0\n", "0\n"),),
        says="The blocks of the first head serve all heads.",
        scene=Scene(**SMALL, options={"causal": True, "block_mask": "by head"}),
    ),
    Wrong(
        name="FLEX_DK_OVERWRITTEN",
        host=FLEX,
        kind="accumulation",
        tensors=("dk",),
        edits=(
            (
                "dk[b, h // groups].index_add_(0, cols, ds.mT @ qi * scale)\n",
                "dk[b, h // groups, cols] = ds.mT @ qi * scale\n",
            ),
        ),
        says="dk keeps the part of the last block of queries that selected the key.",
        scene=Scene(**SMALL, options=SELECTED),
    ),
    Wrong(
        name="FLEX_DV_OF_OTHER_HEAD",
        host=FLEX,
        kind="grouped gradient",
        tensors=("dv",),
        edits=(("dv[b, h // groups].index_add_", "dv[b, h % v.shape[1]].index_add_"),),
        says="dv of query head h goes to head h modulo their number: right without groups.",
        scene=Scene(batch=1, heads=4, kv_heads=2, queries=40, options=SELECTED),
        right_with={"kv_heads": 0},
    ),
    Wrong(
        name="FLEX_LAST_SELECTED_BLOCK_DROPPED",
        host=FLEX,
        kind="selected blocks",
        tensors=ALL,
        edits=(("row_block, :count]]", "row_block, : max(count - 1, 1)]]"),),
        says="Of several selected blocks of a kind the last is left out.",
        scene=Scene(**SMALL, options=CAUSAL),
    ),
    Wrong(
        name="FLEX_DK_OF_DEFAULT_SCALE",
        host=FLEX,
        kind="scale of a gradient",
        tensors=("dk",),
        edits=(("ds.mT @ qi * scale)", "ds.mT @ qi * q.shape[-1] ** -0.5)"),),
        says="dk has the default scale whatever was given.",
        scene=Scene(**SMALL, options=CAUSAL | {"scale": 0.4}),
    ),
]
