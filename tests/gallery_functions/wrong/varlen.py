"""Wrong edits of the packed attention."""

from tests.gallery_functions.files import VARLEN
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")
LENGTHS = (30, 41, 17)

WRONG = [
    Wrong(
        name="VARLEN_SEES_FIRST_KEY_OF_NEXT",
        host=VARLEN,
        kind="sequence borders",
        tensors=ALL,
        edits=(
            (
                """_per_head(k[k_start:k_end], groups), _per_head(v[k_start:k_end], groups)
            qh = """,
                """_per_head(k[k_start : k_end + 1], groups), _per_head(v[k_start : k_end + 1], groups)
            qh = """,
            ),
            (
                "workspace = torch.empty(num_heads, TILE, max_k, dtype",
                "workspace = torch.empty(num_heads, TILE, max_k + 1, dtype",
            ),
        ),
        says="A sequence sees the first key of the next one; a causal mask hides it.",
        scene=Scene(lengths=LENGTHS),
        right_with={"options": {"causal": True}},
    ),
    Wrong(
        name="VARLEN_BOUNDS_OF_QUERIES_FOR_KEYS",
        host=VARLEN,
        kind="cu_seqlens",
        tensors=ALL,
        edits=(
            (
                "bounds_q, bounds_k = cu_q.tolist(), cu_k.tolist()\n",
                "bounds_q, bounds_k = cu_q.tolist(), cu_q.tolist()\n",
            ),
        ),
        says="Keys are cut by cu_seqlens_q: right while queries and keys have equal lengths.",
        scene=Scene(lengths=(20, 31, 17), key_lengths=(30, 41, 17)),
        right_with={"key_lengths": ()},
    ),
    Wrong(
        name="VARLEN_DELTA_OF_FIRST_SEQUENCE",
        host=VARLEN,
        kind="cu_seqlens",
        tensors=("dk", "dq"),
        edits=(("delta[here].t()", "delta[row : row + qi.shape[1]].t()"),),
        says="delta is indexed from the start of the pack, not of the sequence: right for one sequence.",
        scene=Scene(lengths=LENGTHS, options=CAUSAL),
        right_with={"lengths": (41,)},
    ),
    Wrong(
        name="VARLEN_LSE_OF_FIRST_SEQUENCE",
        host=VARLEN,
        kind="cu_seqlens",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "probs = torch.exp(scores - lse[:, here, None])\n",
                "probs = torch.exp(scores - lse[:, row : row + qi.shape[1], None])\n",
            ),
        ),
        says="Backward reads the logsumexp from the start of the pack: right for one sequence.",
        scene=Scene(lengths=LENGTHS, options=CAUSAL),
        right_with={"lengths": (41,)},
    ),
    Wrong(
        name="VARLEN_TOP_LEFT",
        host=VARLEN,
        kind="causal mask",
        tensors=ALL,
        edits=(
            (
                "rows = torch.arange(row0, row0 + num_rows, device=qi.device)[:, None] + shift\n",
                "rows = torch.arange(row0, row0 + num_rows, device=qi.device)[:, None]\n",
            ),
        ),
        says="The causal mask is aligned at the first query and key of a sequence.",
        scene=Scene(lengths=(20, 31, 17), key_lengths=(30, 41, 17), options=CAUSAL),
        right_with={"key_lengths": ()},
    ),
    Wrong(
        name="VARLEN_LAST_SEQUENCE_WITHOUT_GRADIENT",
        host=VARLEN,
        kind="cu_seqlens",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                """.sum(-1)
        for i in range(len(bounds_q) - 1):
""",
                """.sum(-1)
        for i in range(max(len(bounds_q) - 2, 1)):
""",
            ),
        ),
        says="Backward leaves out the last sequence of a pack of several.",
        scene=Scene(lengths=LENGTHS, options=CAUSAL),
        right_with={"lengths": (41,)},
    ),
    Wrong(
        name="VARLEN_STALE_WORKSPACE",
        host=VARLEN,
        kind="workspace",
        tensors=ALL,
        edits=(
            (
                "workspace = torch.empty(num_heads, TILE, max_k, dtype=work, device=q.device)\n        out",
                "workspace = torch.full((num_heads, TILE, max_k), -math.inf, dtype=work, device=q.device)\n        out",
            ),
            (
                "                probs = torch.exp(scores - peak)\n",
                "                probs = torch.exp(workspace[:, : qi.shape[1]] - peak)\n",
            ),
            ("(probs @ vh / total)", "(probs[..., : kh.shape[1]] @ vh / total)"),
        ),
        line=("probs = torch.exp(workspace[:, : qi.shape[1]] - peak)",),
        says="The workspace is cleared once: scores of a longer sequence before stay in the denominators.",
        scene=Scene(lengths=(41, 30, 17), options=CAUSAL),
        right_with={"lengths": (17, 30, 41)},
    ),
    Wrong(
        name="VARLEN_UNWRITTEN_ROWS",
        host=VARLEN,
        kind="unwritten memory",
        tensors=("out",),
        edits=(("out = torch.zeros(q.shape[0]", "out = torch.empty(q.shape[0]"),),
        says="Queries of a sequence without keys are not written: whatever was in memory comes out.",
        scene=Scene(lengths=(20, 11, 17), key_lengths=(30, 0, 17)),
    ),
    Wrong(
        name="VARLEN_WINDOW_SHORT_BY_ONE",
        host=VARLEN,
        kind="window",
        tensors=ALL,
        edits=(("cols < rows - left", "cols <= rows - left"),),
        says="A window of W keys sees W - 1.",
        scene=Scene(lengths=LENGTHS, options=CAUSAL | {"window": (7, 0)}),
    ),
    Wrong(
        name="VARLEN_HEADS_TILED",
        host=VARLEN,
        kind="grouped heads",
        tensors=ALL,
        edits=(("x.repeat_interleave(groups, 0) if", "x.repeat(groups, 1, 1) if"),),
        says="Query head h reads key head h modulo their number, not h // groups.",
        scene=Scene(lengths=LENGTHS, kv_heads=2, options=CAUSAL),
        right_with={"kv_heads": 0},
    ),
    Wrong(
        name="VARLEN_DK_SUMMED_OVER_WRONG_HEADS",
        host=VARLEN,
        kind="grouped gradient",
        tensors=("dk",),
        edits=(("dkh.unflatten(0, (kv_heads, groups)).sum(1)", "dkh.unflatten(0, (groups, kv_heads)).sum(0)"),),
        says="dk is summed over heads of different groups.",
        scene=Scene(lengths=LENGTHS, kv_heads=2, options=CAUSAL),
    ),
    Wrong(
        name="VARLEN_CAUSAL_FORGOTTEN_IN_BACKWARD",
        host=VARLEN,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(("        scale, left, right = ctx.rest\n", "        (scale, left, _), right = ctx.rest, -1\n"),),
        says="Backward recomputes scores without the causal mask.",
        scene=Scene(lengths=LENGTHS, options=CAUSAL),
    ),
    Wrong(
        name="VARLEN_DV_OVERWRITTEN_BY_QUERY_TILES",
        host=VARLEN,
        kind="accumulation",
        tensors=("dv",),
        edits=(("dvh += probs.transpose(1, 2) @ do\n", "dvh = probs.transpose(1, 2) @ do\n"),),
        says="dv keeps the part of the last tile of queries: right for sequences of at most 24.",
        scene=Scene(lengths=LENGTHS, options=CAUSAL),
        right_with={"lengths": (24, 7)},
    ),
]
