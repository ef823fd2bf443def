"""Wrong edits of the grouped attention with packed heads."""

from tests.gallery_functions.files import PACKED
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="PACKED_HEADS_INTERLEAVED",
        host=PACKED,
        kind="grouped heads",
        tensors=ALL,
        edits=(
            (
                "packed = _pack(q.to(work), kv_heads)\n        kf, vf",
                "packed = q.to(work).unflatten(1, (-1, kv_heads)).transpose(1, 2).flatten(2, 3)\n        kf, vf",
            ),
        ),
        says="Heads h, h + Hk, h + 2 Hk are packed together, and unpacked as if they were neighbours.",
        scene=Scene(heads=6, kv_heads=3, options=CAUSAL),
    ),
    Wrong(
        name="PACKED_FIRST_EIGHT_HEADS_HAVE_GRADIENTS",
        host=PACKED,
        kind="many heads",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "for h0 in range(0, kv_heads, HEADS_AT_ONCE):\n",
                "for h0 in range(0, min(kv_heads, 8), HEADS_AT_ONCE):\n",
            ),
        ),
        says="Key heads from the ninth on get no gradient, nor do their queries.",
        scene=Scene(heads=20, kv_heads=10, queries=40, options=CAUSAL),
        right_with={"heads": 16, "kv_heads": 8},
    ),
    Wrong(
        name="PACKED_LAST_OF_ODD_HEADS_WITHOUT_GRADIENT",
        host=PACKED,
        kind="many heads",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "for h0 in range(0, kv_heads, HEADS_AT_ONCE):\n",
                "for h0 in range(0, kv_heads - 1, HEADS_AT_ONCE):\n",
            ),
        ),
        says="With an odd number of key heads the last one gets no gradient, nor do its queries.",
        scene=Scene(heads=6, kv_heads=3, options=CAUSAL),
        right_with={"heads": 8, "kv_heads": 4},
    ),
    Wrong(
        name="PACKED_GRADIENT_IN_OTHER_ORDER",
        host=PACKED,
        kind="grouped gradient",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "do = _pack(grad_out.to(work), kv_heads)\n",
                "do = grad_out.to(work).unflatten(1, (kv_heads, -1)).transpose(2, 3).flatten(2, 3)\n",
            ),
        ),
        says="dout is packed token after token, all else head after head: right for one head a group.",
        scene=Scene(heads=6, kv_heads=3, options=CAUSAL),
        right_with={"kv_heads": 6},
    ),
    Wrong(
        name="PACKED_NO_DK_WHEN_QUERIES_ARE_FROZEN",
        host=PACKED,
        kind="gradients of some inputs",
        tensors=("dk",),
        edits=(
            (
                "dk = dk.to(k.dtype) if ctx.needs_input_grad[1] else None\n",
                "dk = dk.to(k.dtype) if ctx.needs_input_grad[0] else None\n",
            ),
        ),
        says="Keys get no gradient when queries want none.",
        scene=Scene(heads=6, kv_heads=3, needs_grad="kv", options=CAUSAL),
        right_with={"needs_grad": "qkv"},
    ),
    Wrong(
        name="PACKED_POSITION_OF_PACKED_ROW",
        host=PACKED,
        kind="causal mask",
        tensors=ALL,
        edits=(
            (
                "position = torch.arange(start, stop, device=device) % seqlen_q\n",
                "position = torch.arange(start, stop, device=device)\n",
            ),
        ),
        says="The packed row is taken for the position: all heads but the first of a group see later keys.",
        scene=Scene(heads=6, kv_heads=3, options=CAUSAL),
    ),
    Wrong(
        name="PACKED_DK_OF_LAST_ROWS",
        host=PACKED,
        kind="accumulation",
        tensors=("dk",),
        edits=(("dk[:, heads] += ds.mT @ qi * scale\n", "dk[:, heads] = ds.mT @ qi * scale\n"),),
        says="dk keeps the part of the last 64 packed rows: right while a group has no more.",
        scene=Scene(heads=6, kv_heads=3, options=CAUSAL),
        right_with={"queries": 32},
    ),
    Wrong(
        name="PACKED_DK_SUMS_OVER_CALLS",
        host=PACKED,
        kind="workspace",
        tensors=("dk",),
        edits=(
            ("HEADS_AT_ONCE = 2\n", "HEADS_AT_ONCE = 2\n_WORKSPACE = {}\n"),
            (
                "dk = torch.zeros(k.shape, dtype=work, device=k.device)\n",
                "dk = _WORKSPACE.setdefault(k.shape, torch.zeros(k.shape, dtype=work, device=k.device))\n",
            ),
        ),
        line=("dk = _WORKSPACE.setdefault(k.shape, torch.zeros(k.shape, dtype=work, device=k.device))",),
        says="The buffer of dk is kept by shape and never cleared: the second backward adds to the first.",
        scene=Scene(heads=6, kv_heads=3, history="other values before", options=CAUSAL),
        right_with={"history": "one call", "queries": 71},
    ),
    Wrong(
        name="PACKED_DQ_OF_GROUP_SIZE",
        host=PACKED,
        kind="scale of a gradient",
        tensors=("dq",),
        edits=(
            (
                "dq[:, heads, start:stop] = ds @ kf * scale\n",
                "dq[:, heads, start:stop] = ds @ kf * scale / (q.shape[1] // kv_heads)\n",
            ),
        ),
        says="dq is divided by the heads of a group, as if it were shared like dk.",
        scene=Scene(heads=6, kv_heads=3, options=CAUSAL),
    ),
    Wrong(
        name="PACKED_DELTA_OF_FIRST_BATCH",
        host=PACKED,
        kind="batch",
        tensors=("dk", "dq"),
        edits=(("(dp - delta[:, heads, start:stop])", "(dp - delta[:1, heads, start:stop])"),),
        says="delta of the first row of the batch serves all rows: right at B=1.",
        scene=Scene(heads=6, kv_heads=3, options=CAUSAL),
        right_with={"batch": 1},
    ),
    Wrong(
        name="PACKED_SHARED_KEYS_SUMMED_TWICE",
        host=PACKED,
        kind="layout",
        tensors=("dk",),
        edits=(
            (
                "        dk = dk.to(k.dtype) if",
                """        if k.stride(0) == 0:  # shared by all rows
            dk = dk.sum(0, keepdim=True).expand_as(dk)
        dk = dk.to(k.dtype) if""",
            ),
        ),
        says="Keys that are expanded over the batch get the sum of all rows in each row, which autograd sums again.",
        scene=Scene(heads=6, kv_heads=3, layout="expanded", options=CAUSAL),
        right_with={"layout": "plain"},
    ),
]
