"""Wrong edits of the attention with caps, ALiBi and sinks."""

from tests.gallery_functions.files import CAPPED
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALIBI = CAUSAL | {"alibi": "heads"}
SINKS = CAUSAL | {"sinks": True}
CAP = CAUSAL | {"softcap": 4.0}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="CAPPED_ALIBI_OF_FIRST_ROW",
        host=CAPPED,
        kind="alibi",
        tensors=ALL,
        edits=(("slopes if slopes.dim() == 2 else slopes[None]", "slopes[:1] if slopes.dim() == 2 else slopes[None]"),),
        says="Of slopes [B, H] those of the first row serve the whole batch.",
        scene=Scene(options=CAUSAL | {"alibi": "rows"}),
        right_with={"options": {"causal": True, "alibi": "heads"}},
    ),
    Wrong(
        name="CAPPED_ALIBI_TOP_LEFT",
        host=CAPPED,
        kind="alibi",
        tensors=ALL,
        edits=(
            (
                """rows = torch.arange(start, stop, device=slopes.device)[:, None] + (seqlen_k - seqlen_q)
""",
                """rows = torch.arange(start, stop, device=slopes.device)[:, None]
""",
            ),
        ),
        says="Distances count from the first query at the first key: wrong where Sq != Sk.",
        scene=Scene(queries=50, keys=70, options=ALIBI),
        right_with={"keys": 0},
    ),
    Wrong(
        name="CAPPED_ALIBI_SIGN",
        host=CAPPED,
        kind="alibi",
        tensors=ALL,
        edits=(("return -per_row[:, :, None, None] * distance", "return per_row[:, :, None, None] * distance"),),
        says="Distant keys gain where they should lose.",
        scene=Scene(options=ALIBI),
    ),
    Wrong(
        name="CAPPED_ALIBI_HEADS_REVERSED",
        host=CAPPED,
        kind="alibi",
        tensors=ALL,
        edits=(
            ("slopes if slopes.dim() == 2 else slopes[None]", "slopes if slopes.dim() == 2 else slopes.flip(0)[None]"),
        ),
        says="Slopes are given to the heads in reversed order.",
        scene=Scene(options=ALIBI),
    ),
    Wrong(
        name="CAPPED_ALIBI_MISSING_IN_BACKWARD",
        host=CAPPED,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                """            scores = capped
            if slopes is not None:
                scores = scores + _position_bias(slopes.to(work), start, stop, seqlen_q, seqlen_k, batch)
""",
                """            scores = capped
""",
            ),
        ),
        line=("scores = capped", "probs = torch.exp(scores - lse[:, :, start:stop, None])"),
        says="P is recomputed without the bias of positions.",
        scene=Scene(options=ALIBI),
    ),
    Wrong(
        name="CAPPED_SINK_GRADIENT_SIGN",
        host=CAPPED,
        kind="sinks",
        tensors=("dsinks",),
        edits=(("dsinks = -(p_sink * delta)", "dsinks = (p_sink * delta)"),),
        says="The gradient of the sinks has the wrong sign.",
        scene=Scene(options=SINKS),
    ),
    Wrong(
        name="CAPPED_SINK_GRADIENT_OF_FIRST_ROW",
        host=CAPPED,
        kind="sinks",
        tensors=("dsinks",),
        edits=(("(p_sink * delta).sum((0, 2))", "(p_sink * delta).sum(2)[0]"),),
        says="The gradient of the sinks is that of the first row of the batch.",
        scene=Scene(options=SINKS),
        right_with={"batch": 1},
    ),
    Wrong(
        name="CAPPED_SINK_NOT_IN_DENOMINATOR",
        host=CAPPED,
        kind="sinks",
        tensors=("dk", "dq", "dsinks", "dv", "out"),
        edits=(
            (
                """            if sinks is not None:
                total = total + torch.exp(sink - row_max)
""",
                "",
            ),
        ),
        line=("total = weights.sum(-1)",),
        says="Sinks raise the maximum and are missing in the denominators: they change nothing.",
        scene=Scene(options=SINKS),
    ),
    Wrong(
        name="CAPPED_DERIVATIVE_OF_TANH_TWICE",
        host=CAPPED,
        kind="softcap",
        tensors=("dk", "dq"),
        edits=(("(1 - (capped / softcap).square())", "(1 - torch.tanh(capped / softcap).square())"),),
        says="The derivative of the cap takes tanh of what is capped already: near right for small logits.",
        scene=Scene(options=CAP),
    ),
    Wrong(
        name="CAPPED_DERIVATIVE_AT_BIASED_SCORES",
        host=CAPPED,
        kind="softcap",
        tensors=("dk", "dq"),
        edits=(("(1 - (capped / softcap).square())", "(1 - (scores / softcap).square())"),),
        says="The derivative of the cap is taken at scores with the ALiBi bias: right without it.",
        scene=Scene(options=CAP | {"alibi": "heads"}),
        right_with={"options": {"causal": True, "softcap": 4.0}},
    ),
    Wrong(
        name="CAPPED_LOGITS_CLAMPED_AT_50",
        host=CAPPED,
        kind="magnitude",
        tensors=ALL,
        edits=(
            (
                "scores = _cap(_raw_scores(qh[:, :, start:stop], kh, scale), softcap)\n",
                "scores = _cap(_raw_scores(qh[:, :, start:stop], kh, scale).clamp(-50, 50), softcap)\n",
            ),
        ),
        says="Logits are clamped at 50 in forward: right for all smaller ones.",
        scene=Scene(gain=40.0, options=CAUSAL),
        right_with={"gain": 1.0},
    ),
    Wrong(
        name="CAPPED_DQ_ROWS_UNWRITTEN",
        host=CAPPED,
        kind="unwritten memory",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "delta = (do * out).sum(-1)\n        for start in range(0, seqlen_q, ROWS):\n",
                "delta = (do * out).sum(-1)\n        for start in range(0, max(seqlen_q // ROWS, 1) * ROWS, ROWS):\n",
            ),
        ),
        says="Backward leaves out the last partial tile of queries; their dq is memory that nobody wrote.",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 80},
    ),
    Wrong(
        name="CAPPED_DQ_AND_DK_SWAPPED",
        host=CAPPED,
        kind="order of gradients",
        tensors=("dk", "dq"),
        edits=(("        return dq, dk, dv, None, dsinks,", "        return dk, dq, dv, None, dsinks,"),),
        says="dk is returned for the queries and dq for the keys, which have the same shape where Sq = Sk.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="CAPPED_SCALE_APPLIED_AFTER_CAP",
        host=CAPPED,
        kind="softcap",
        tensors=ALL,
        edits=(
            (
                "scores = _cap(_raw_scores(qh[:, :, start:stop], kh, scale), softcap)\n            if",
                "scores = _cap(_raw_scores(qh[:, :, start:stop], kh, 1.0), softcap) * scale\n            if",
            ),
        ),
        line=("scores = _cap(_raw_scores(qh[:, :, start:stop], kh, 1.0), softcap) * scale",),
        says="Forward caps the logits before it scales them: right without a cap.",
        scene=Scene(options=CAP),
        right_with={"options": {"causal": True}},
    ),
    Wrong(
        name="CAPPED_DK_IN_HALF",
        host=CAPPED,
        kind="precision in backward",
        tensors=("dk",),
        edits=(
            (
                "dk += dscores.mT @ qh[:, :, start:stop]\n",
                "dk += (dscores.half().mT @ qh[:, :, start:stop].half()).to(work)\n",
            ),
        ),
        says="dk is multiplied in half precision whatever the inputs' dtype.",
        scene=Scene(options=CAUSAL),
    ),
]
