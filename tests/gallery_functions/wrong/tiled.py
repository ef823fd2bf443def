"""Wrong edits of the tiled flash attention."""

from tests.gallery_functions.files import TILED
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
TAIL_OF_KEYS = "            for m0 in range(0, seqlen_q, BLOCK_M):\n                m1 = min(m0 + BLOCK_M, seqlen_q)\n"

WRONG = [
    Wrong(
        name="TILED_DK_WITHOUT_SCALE",
        host=TILED,
        kind="scale of a gradient",
        tensors=("dk",),
        edits=(("qi).sum(2, keepdim=True) * scale\n", "qi).sum(2, keepdim=True)\n"),),
        says="dk lacks the softmax scale, at any shape.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_DQ_SCALED_FOR_PADDED_HEAD",
        host=TILED,
        kind="scale of a gradient",
        tensors=("dq",),
        edits=(
            (
                "dq[..., m0:m1, :] += torch.matmul(ds, kj) * scale\n",
                "dq[..., m0:m1, :] += torch.matmul(ds, kj) * (-(-q.shape[-1] // 8) * 8) ** -0.5\n",
            ),
        ),
        says="dq is scaled for the head size padded to a multiple of 8: 5 % off at D=36, right at D=64.",
        scene=Scene(dim=36, options=CAUSAL),
        right_with={"dim": 64},
    ),
    Wrong(
        name="TILED_NO_DELTA",
        host=TILED,
        kind="delta",
        tensors=("dk", "dq"),
        edits=(("ds = p * (dp - delta[..., m0:m1, None])\n", "ds = p * dp\n"),),
        says="The backward pass of softmax lacks delta.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_DQ_OF_LAST_KEY_TILE",
        host=TILED,
        kind="accumulation",
        tensors=("dq",),
        edits=(
            (
                "dq[..., m0:m1, :] += torch.matmul(ds, kj) * scale\n",
                "dq[..., m0:m1, :] = torch.matmul(ds, kj) * scale\n",
            ),
        ),
        says="dq is overwritten by each tile of keys: right while there is one tile (S <= 32).",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 32},
    ),
    Wrong(
        name="TILED_ACC_NOT_RESCALED",
        host=TILED,
        kind="online softmax",
        tensors=("dk", "dq", "out"),
        edits=(("acc = acc * alpha[..., None] + torch.matmul(", "acc = acc + torch.matmul("),),
        says="The accumulator is not rescaled when the maximum grows: wrong from the second tile of keys on.",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 32},
    ),
    Wrong(
        name="TILED_FIRST_MAX_ZERO",
        host=TILED,
        kind="online softmax",
        tensors=("dk", "dq", "dv", "out"),
        edits=(("m_i = qi.new_full(qi.shape[:-1], -math.inf)\n", "m_i = qi.new_zeros(qi.shape[:-1])\n"),),
        says="The running maximum starts at 0: rows whose logits are all below -104 underflow to zero.",
        scene=Scene(shift=-300.0, options=CAUSAL),
        right_with={"shift": 0.0},
    ),
    Wrong(
        name="TILED_CAUSAL_SEES_NEXT",
        host=TILED,
        kind="causal mask",
        tensors=("dk", "dq", "dv", "out"),
        edits=(("keep &= cols <= rows + right\n", "keep &= cols < rows + right + 2\n"),),
        says="A query sees the key after its own.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_TOP_LEFT",
        host=TILED,
        kind="causal mask",
        tensors=("dk", "dq", "dv", "out"),
        edits=(
            (
                "rows = torch.arange(m0, m1, device=device)[:, None] + shift\n",
                "rows = torch.arange(m0, m1, device=device)[:, None]\n",
            ),
        ),
        says="The causal mask is aligned at the first query and key: right only where Sq = Sk.",
        scene=Scene(queries=37, keys=70, options=CAUSAL),
        right_with={"keys": 0},
    ),
    Wrong(
        name="TILED_WINDOW_SHORT_BY_ONE",
        host=TILED,
        kind="window",
        tensors=("dk", "dq", "dv", "out"),
        edits=(("keep &= cols >= rows - left\n", "keep &= cols > rows - left\n"),),
        says="A window of W keys sees W - 1.",
        scene=Scene(options=CAUSAL | {"window": (19, 0)}),
    ),
    Wrong(
        name="TILED_WINDOW_SKIPS_A_TILE",
        host=TILED,
        kind="window",
        tensors=("dk", "dq", "dv", "out"),
        edits=(
            (
                "max(0, (m0 + shift - left) // BLOCK_N * BLOCK_N)",
                "max(0, (m0 + shift - left + BLOCK_N - 1) // BLOCK_N * BLOCK_N)",
            ),
        ),
        says="The first tile of a window is rounded up: keys of the tile in which the window begins are skipped.",
        scene=Scene(options=CAUSAL | {"window": (19, 0)}),
    ),
    Wrong(
        name="TILED_LSE_OF_LAST_TILE_MAX",
        host=TILED,
        kind="lse",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "(m_i + torch.log(l_safe)).masked_fill(empty, math.inf)",
                "(s.amax(-1) + torch.log(l_safe)).masked_fill(empty, math.inf)",
            ),
        ),
        says="The saved lse adds the last tile's maximum in place of the running one: right while there is one tile.",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 32},
    ),
    Wrong(
        name="TILED_BACKWARD_WITHOUT_MASK",
        host=TILED,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(("                p = p.masked_fill(~keep, 0.0)\n", ""),),
        line=("p = torch.exp(s - lse[..., m0:m1, None])",),
        says="P is recomputed without the mask within the tiles on the diagonal.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_DV_BEFORE_MASK",
        host=TILED,
        kind="mask in backward",
        tensors=("dv",),
        edits=(
            (
                """                p = p.masked_fill(~keep, 0.0)
                dv_j += torch.matmul(p.transpose(-1, -2), do_i).sum(2, keepdim=True)
""",
                """                dv_j += torch.matmul(p.transpose(-1, -2), do_i).sum(2, keepdim=True)
                p = p.masked_fill(~keep, 0.0)
""",
            ),
        ),
        line=("dv_j += torch.matmul(p.transpose(-1, -2), do_i).sum(2, keepdim=True)",),
        says="dv is summed before P is masked.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_SOFTCAP_WITHOUT_DERIVATIVE",
        host=TILED,
        kind="softcap",
        tensors=("dk", "dq"),
        edits=(
            (
                """                if softcap > 0:
                    ds = ds * (1.0 - (s / softcap) ** 2)
""",
                "",
            ),
        ),
        line=("ds = p * (dp - delta[..., m0:m1, None])",),
        says="The derivative of the soft cap is missing in backward.",
        scene=Scene(options=CAUSAL | {"softcap": 4.0}),
    ),
    Wrong(
        name="TILED_SOFTCAP_AFTER_MASK",
        host=TILED,
        kind="softcap",
        tensors=("dk", "dq", "dv", "out"),
        edits=(
            (
                "                s = _logits(qi, kh[..., n0:n1, :], scale, softcap)\n",
                "                s = _logits(qi, kh[..., n0:n1, :], scale, 0.0)\n",
            ),
            (
                "                s = s.masked_fill(~keep, -math.inf)\n",
                """                s = s.masked_fill(~keep, -math.inf)
                if softcap > 0:
                    s = softcap * torch.tanh(s / softcap)
""",
            ),
        ),
        line=("s = softcap * torch.tanh(s / softcap)", "s = s.masked_fill(~keep, -math.inf)"),
        says="Logits are capped after the mask: hidden keys of the diagonal tile have a logit of -softcap.",
        scene=Scene(options=CAUSAL | {"softcap": 4.0}),
    ),
    Wrong(
        name="TILED_DK_OF_ONE_HEAD_IN_GROUP",
        host=TILED,
        kind="grouped gradient",
        tensors=("dk",),
        edits=(("qi).sum(2, keepdim=True) * scale\n", "qi)[:, :, -1:] * scale\n"),),
        says="dk takes the last query head of each group: right without groups.",
        scene=Scene(kv_heads=2, options=CAUSAL),
        right_with={"kv_heads": 0},
    ),
    Wrong(
        name="TILED_DV_MEAN_OVER_GROUP",
        host=TILED,
        kind="grouped gradient",
        tensors=("dv",),
        edits=(("do_i).sum(2, keepdim=True)\n", "do_i).mean(2, keepdim=True)\n"),),
        says="dv is the mean over the heads of a group, not their sum.",
        scene=Scene(kv_heads=2, options=CAUSAL),
        right_with={"kv_heads": 0},
    ),
    Wrong(
        name="TILED_BACKWARD_DROPS_QUERY_TAIL",
        host=TILED,
        kind="last partial tile",
        tensors=("dk", "dq", "dv"),
        edits=(
            (TAIL_OF_KEYS, TAIL_OF_KEYS.replace("range(0, seqlen_q, ", "range(0, seqlen_q // BLOCK_M * BLOCK_M, ")),
        ),
        says="Backward leaves out the last partial tile of queries: their dq is zero (S % 32 != 0).",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 64},
    ),
    Wrong(
        name="TILED_DELTA_IN_BFLOAT16",
        host=TILED,
        kind="precision in backward",
        tensors=("dk", "dq"),
        edits=(
            (
                "delta = (do * out).sum(-1)\n",
                "delta = (do.bfloat16() * out.bfloat16()).sum(-1).to(do.dtype)\n",
            ),
        ),
        says="delta is computed in bfloat16 under float32 inputs: gradients have two digits.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_DQ_CONTRIBUTIONS_IN_BFLOAT16",
        host=TILED,
        kind="precision in backward",
        tensors=("dq",),
        edits=(
            (
                "dq[..., m0:m1, :] += torch.matmul(ds, kj) * scale\n",
                "dq[..., m0:m1, :] += (torch.matmul(ds, kj) * scale).bfloat16()\n",
            ),
        ),
        says="Each tile's part of dq is rounded to bfloat16 under float32 inputs.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_SMALL_P_DROPPED_IN_BACKWARD",
        host=TILED,
        kind="precision in backward",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "p = p.masked_fill(~keep, 0.0)\n",
                "p = p.masked_fill(~keep | (p < 1e-2), 0.0)\n",
            ),
        ),
        says="Backward drops probabilities below 0.01, which most are from S of about 100 on.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TILED_POSITIONS_IN_UINT8",
        host=TILED,
        kind="long sequences",
        tensors=("dk", "dq", "dv", "out"),
        edits=(
            (
                "rows = torch.arange(m0, m1, device=device)[:, None] + shift\n",
                "rows = torch.arange(m0, m1, device=device).to(torch.uint8)[:, None] + shift\n",
            ),
        ),
        says="Positions of queries wrap at 256: right at all shorter lengths.",
        scene=Scene(batch=1, heads=2, queries=300, options=CAUSAL),
        right_with={"queries": 255},
    ),
    Wrong(
        name="TILED_GRADIENT_TAKEN_FOR_CONTIGUOUS",
        host=TILED,
        kind="layout of the gradient",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "do = _split_heads(dout, kv_heads)\n",
                "do = _split_heads(dout.as_strided(dout.shape, _strides(dout.shape)), kv_heads)\n",
            ),
            (
                "def _logits(",
                """def _strides(shape):
    b, s, h, d = shape
    return s * h * d, h * d, d, 1


def _logits(""",
            ),
        ),
        line=("do = _split_heads(dout.as_strided(dout.shape, _strides(dout.shape)), kv_heads)",),
        says="dout is read as if it were contiguous: wrong when it comes from a transposed output.",
        scene=Scene(grad_layout="transposed", options=CAUSAL),
        right_with={"grad_layout": "plain"},
    ),
    Wrong(
        name="TILED_INPUTS_TAKEN_FOR_CONTIGUOUS",
        host=TILED,
        kind="layout",
        tensors=("dk", "dq", "dv", "out"),
        edits=(
            (
                "    b, s, h, d = x.shape\n    return x.to(",
                "    b, s, h, d = x.shape\n    x = x.as_strided(x.shape, (s * h * d, h * d, d, 1))\n    return x.to(",
            ),
        ),
        says="Strides of queries, keys and values are taken for those of contiguous tensors: wrong for views of a "
        "fused projection.",
        scene=Scene(layout="fused", options=CAUSAL),
        right_with={"layout": "plain"},
    ),
    Wrong(
        name="TILED_SCALES_QUERIES_IN_PLACE",
        host=TILED,
        kind="writes into its inputs",
        tensors=("dk", "dq", "dv", "q"),
        edits=(
            (
                "            qi = qh[..., m0:m1, :]\n            m_i",
                "            qi = qh[..., m0:m1, :].mul_(scale)\n            m_i",
            ),
            (
                "                s = _logits(qi, kh[..., n0:n1, :], scale, softcap)\n",
                "                s = _logits(qi, kh[..., n0:n1, :], 1.0, softcap)\n",
            ),
        ),
        line=("qi = qh[..., m0:m1, :].mul_(scale)",),
        says="A tile of queries is scaled in place, which is the caller's tensor in float32; in bfloat16 it is a copy.",
        scene=Scene(options=CAUSAL),
        right_with={"dtype": "bfloat16"},
    ),
    Wrong(
        name="TILED_WINDOW_FORGOTTEN_IN_BACKWARD",
        host=TILED,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                """shift, left, right, q.device)
                if not""",
                """shift, -1, right, q.device)
                if not""",
            ),
        ),
        says="Backward knows the causal side of a window alone.",
        scene=Scene(options=CAUSAL | {"window": (19, 0)}),
    ),
]
