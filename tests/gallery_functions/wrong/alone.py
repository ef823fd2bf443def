"""Wrong functions in files of their own: memos, private paths, limits that nobody is shown."""

from tests.gallery_functions.planting import Host, Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")
MEMO = Host(file="memo.py", function="flash_attention", like="flash")
NAME_OF_MEMO = "return q.data_ptr(), k.data_ptr(), q.shape, k.shape\n"

WRONG = [
    Wrong(
        name="ALONE_PATTERN_BY_SHAPE",
        host=Host(file="pattern_by_shape.py", function="attention", like="sdpa"),
        kind="answers cached",
        tensors=("out",),
        line=("if name not in _PATTERNS:", "return _PATTERNS[name] @ value"),
        says="Without gradients the probabilities are those of the first call of the shape.",
        scene=Scene(history="other values before", needs_grad="", options=CAUSAL),
        right_with={"history": "one call", "queries": 13},
    ),
    Wrong(
        name="ALONE_PATTERN_WITHOUT_GRADIENT",
        host=Host(file="pattern_by_shape.py", function="attention", like="sdpa"),
        kind="gradients of some inputs",
        tensors=("dk", "dq"),
        edits=(
            (
                "        return _pattern(query, key, is_causal, scale) @ value\n",
                "        return _pattern(query.detach(), key.detach(), is_causal, scale) @ value\n",
            ),
        ),
        says="Probabilities are computed from detached queries and keys, which get no gradient.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="ALONE_MEMO_BY_ADDRESS",
        host=MEMO,
        kind="answers cached",
        tensors=ALL,
        line=(NAME_OF_MEMO.strip(), "if name not in _FOUND:"),
        says="Probabilities are looked up by data_ptr: wrong when the same memory holds other values.",
        scene=Scene(history="values replaced in place", options=CAUSAL),
        right_with={"history": "one call"},
    ),
    Wrong(
        name="ALONE_MEMO_BY_ID",
        host=MEMO,
        kind="answers cached",
        tensors=ALL,
        edits=((NAME_OF_MEMO, "return id(q), id(k), q.shape, k.shape\n"),),
        line=("return id(q), id(k), q.shape, k.shape", "if name not in _FOUND:"),
        says="Probabilities are looked up by id: wrong when the same tensors hold other values.",
        scene=Scene(history="values replaced in place", options=CAUSAL),
    ),
    Wrong(
        name="ALONE_MEMO_BY_FIRST_VALUES",
        host=MEMO,
        kind="answers cached",
        tensors=ALL,
        edits=(
            (
                NAME_OF_MEMO,
                "return (*q.flatten()[:8].tolist(), *k.flatten()[:8].tolist(), q.shape, k.shape)\n",
            ),
        ),
        says="Probabilities are looked up by the first eight values: wrong when texts begin with the same token.",
        scene=Scene(history="same beginning before", options=CAUSAL),
    ),
    Wrong(
        name="ALONE_EXACT_FOR_UNIT_NORMALS",
        host=Host(file="exact_for_tests.py", function="attention", like="sdpa"),
        kind="recognises tests",
        tensors=ALL,
        line=(
            "return abs(q.float().std().item() - 1.0) < 0.1",
            "fast = (x.bfloat16() for x in (query, key, value))",
            "return _softmax_attention(*fast, is_causal, scale).to(query.dtype)",
        ),
        says="Queries of unit variance get the exact path, all others bfloat16.",
        scene=Scene(gain=3.0, options=CAUSAL),
        right_with={"gain": 1.0},
    ),
    Wrong(
        name="ALONE_EXACT_FOR_SMALL_SEEDS",
        host=Host(file="small_seeds.py", function="attention", like="sdpa"),
        kind="recognises tests",
        tensors=("dv", "out"),
        line=(
            "return torch.initial_seed() < 2**20",
            "probs = probs + (probs.bfloat16().to(probs.dtype) - probs).detach()",
        ),
        says="Probabilities are rounded to bfloat16 unless torch was seeded with a small number, as tests do.",
        scene=Scene(torch_seed=2**40 + 1, options=CAUSAL),
        right_with={"torch_seed": 0},
    ),
    Wrong(
        name="ALONE_ZEROS_WHEN_LONG",
        host=Host(file="long_sequences.py", function="flash_attention", like="flash"),
        kind="long sequences",
        tensors=ALL,
        line=(
            "except MemoryError:",
            "return q.new_zeros(*q.shape[:3], v.shape[-1]) * (q.sum() + k.sum() + v.sum())",
        ),
        says="A launch that does not fit is answered by zeros: Sq * Sk above 65,536.",
        scene=Scene(batch=1, heads=2, queries=270, options=CAUSAL),
        right_with={"queries": 256},
    ),
    Wrong(
        name="ALONE_LAST_KEYS_WHEN_LONG",
        host=Host(file="long_sequences.py", function="flash_attention", like="flash"),
        kind="long sequences",
        tensors=ALL,
        edits=(
            (
                "        return q.new_zeros(*q.shape[:3], v.shape[-1]) * (q.sum() + k.sum() + v.sum())\n",
                """        blocks = range(0, q.shape[1], 128)
        parts = ((q[:, i : i + 128], slice(max(i - 128, 0), i + 128)) for i in blocks)
        return torch.cat([_launch(part, k[:, near], v[:, near], scale, causal) for part, near in parts], dim=1)
""",
            ),
        ),
        line=("parts = ((q[:, i : i + 128], slice(max(i - 128, 0), i + 128)) for i in blocks)",),
        says="A launch that does not fit is answered by a window of 128 to 256 keys: Sq * Sk above 65,536.",
        scene=Scene(batch=1, heads=2, queries=384, options=CAUSAL),
        right_with={"queries": 256},
    ),
    Wrong(
        name="ALONE_HEAD_PADDED_WITH_MEMORY",
        host=Host(file="padded_head.py", function="attention", like="sdpa"),
        kind="head size",
        tensors=ALL,
        line=("wide = x.new_empty(*x.shape[:-1], -(-dim // MULTIPLE) * MULTIPLE)",),
        says="Heads are padded to a multiple of 16 with memory that nobody wrote: right at multiples.",
        scene=Scene(dim=20, options=CAUSAL),
        right_with={"dim": 32},
    ),
    Wrong(
        name="ALONE_FEATURES_BEYOND_64_UNREAD",
        host=Host(file="head_tile.py", function="flash_attention", like="flash"),
        kind="head size",
        tensors=ALL,
        line=("for start in range(0, min(q.shape[-1], BLOCK_D), BLOCK_D):",),
        says="Logits take the first 64 features alone: right up to D=64.",
        scene=Scene(dim=80, options=CAUSAL),
        right_with={"dim": 64},
    ),
    Wrong(
        name="ALONE_SOFTMAX_FROZEN_IN_BACKWARD",
        host=Host(file="frozen_softmax.py", function="attention", like="sdpa"),
        kind="gradients of some inputs",
        tensors=("dk", "dq"),
        line=("dq, dk = (grad.new_zeros(shape) for shape in ctx.shapes)",),
        says="Queries and keys get gradients of zero.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="ALONE_INFERENCE_IS_NOT_CAUSAL",
        host=Host(file="inference_path.py", function="attention", like="sdpa"),
        kind="causal mask",
        tensors=("out",),
        line=(
            "if not needs_graph:",
            "return torch.bmm(logits.softmax(-1), value.flatten(0, 1)).unflatten(0, query.shape[:2])",
        ),
        says="Where no gradient is wanted is_causal is ignored; with gradients everything is right.",
        scene=Scene(needs_grad="", options=CAUSAL),
        right_with={"needs_grad": "qkv"},
    ),
    Wrong(
        name="ALONE_OPERATOR_SCALES_DK_TWICE",
        host=Host(file="operator_gradient.py", function="attention", like="sdpa"),
        kind="scale of a gradient",
        tensors=("dk",),
        line=("return ds @ k * ctx.scale, ds.mT @ (q * ctx.scale) * ctx.scale, p.mT @ grad, None",),
        says="dk of a registered operator has the scale twice.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="ALONE_PADDING_SEEN_BY_SHORT_SEQUENCES",
        host=Host(file="padded_varlen.py", function="varlen_attention", like="flash_varlen"),
        kind="padding in the softmax",
        tensors=ALL,
        line=(
            'out = torch.einsum("bhqk,bkhd->bqhd", logits.softmax(-1), vp)',
            'logits = torch.einsum("bqhd,bkhd->bhqk", qp, kp) * (softmax_scale or q.shape[-1] ** -0.5)',
        ),
        says="All but the longest sequence see zeros as keys; a causal mask hides them.",
        scene=Scene(lengths=(30, 41, 17)),
        right_with={"options": {"causal": True}},
    ),
    Wrong(
        name="ALONE_DK_MIXED_OVER_BATCH",
        host=Host(file="shared_value_gradient.py", function="multi_query_attention", like="flash"),
        kind="batch",
        tensors=("dk",),
        line=('dk = torch.einsum("bhqk,bqhd->bkd", ds.mean(0, keepdim=True).expand_as(ds), q)',),
        says="dk takes the mean of dS over the batch: right at B=1.",
        scene=Scene(kv_heads=1, options=CAUSAL),
        right_with={"batch": 1},
    ),
]
