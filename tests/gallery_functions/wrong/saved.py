"""Wrong edits of the attention that keeps its probabilities."""

from tests.gallery_functions.files import SAVED
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="SAVED_DV_OF_UNNORMALISED_WEIGHTS",
        host=SAVED,
        kind="normalisation",
        tensors=("dv",),
        edits=(
            (
                "        ctx.save_for_backward(q, k, v, probs)\n",
                """        weights = torch.exp(attn - attn.amax(dim=-1, keepdim=True))
        ctx.save_for_backward(q, k, v, probs, weights)
""",
            ),
            ("q, k, v, probs = ctx.saved_tensors\n", "q, k, v, probs, weights = ctx.saved_tensors\n"),
            ("grad_v = torch.matmul(probs.", "grad_v = torch.matmul(weights."),
        ),
        line=("grad_v = torch.matmul(weights.transpose(-2, -1), grad_out)",),
        says="dv is summed with exponentials that are not divided by their sum.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SAVED_PROBABILITIES_IN_BFLOAT16",
        host=SAVED,
        kind="precision in backward",
        tensors=("dk", "dq", "dv"),
        edits=(
            ("ctx.save_for_backward(q, k, v, probs)\n", "ctx.save_for_backward(q, k, v, probs.bfloat16())\n"),
            (
                "q, k, v, probs = ctx.saved_tensors\n",
                "q, k, v, probs = ctx.saved_tensors\n        probs = probs.to(q.dtype)\n",
            ),
        ),
        line=("ctx.save_for_backward(q, k, v, probs.bfloat16())", "probs = probs.to(q.dtype)"),
        says="Probabilities are kept in bfloat16 whatever the inputs' dtype.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SAVED_MEAN_FOR_DELTA",
        host=SAVED,
        kind="delta",
        tensors=("dk", "dq"),
        edits=(
            (
                "inner = (grad_probs * probs).sum(dim=-1, keepdim=True)\n",
                "inner = grad_probs.mean(dim=-1, keepdim=True)\n",
            ),
        ),
        says="dP is centred by its mean, not by its mean under P: nearly right where attention is uniform.",
        scene=Scene(),
    ),
    Wrong(
        name="SAVED_BIAS_GRADIENT_IS_A_MEAN",
        host=SAVED,
        kind="gradient of a broadcast mask",
        tensors=("dbias",),
        edits=(("return grad.sum(wide, keepdim=True) if", "return grad.mean(wide, keepdim=True) if"),),
        says="The gradient of a broadcast bias is a mean over batch and queries, not a sum.",
        scene=Scene(options={"mask": "learned"}),
    ),
    Wrong(
        name="SAVED_SCALES_GRADIENT_IN_PLACE",
        host=SAVED,
        kind="writes into its inputs",
        tensors=("dout",),
        edits=(
            (
                "        grad_probs = torch.matmul(grad_out, v.transpose(-2, -1))\n",
                "        grad_probs = torch.matmul(grad_out.mul_(ctx.scale), v.transpose(-2, -1))\n",
            ),
            ("torch.matmul(grad_attn, k) * ctx.scale\n", "torch.matmul(grad_attn, k)\n"),
            (
                "torch.matmul(grad_attn.transpose(-2, -1), q) * ctx.scale\n",
                "torch.matmul(grad_attn.transpose(-2, -1), q)\n",
            ),
        ),
        line=("grad_probs = torch.matmul(grad_out.mul_(ctx.scale), v.transpose(-2, -1))",),
        says="Backward scales the gradient that it is handed in place: what else uses it, a residual say, is wrong.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SAVED_LAST_CALL_ALONE",
        host=SAVED,
        kind="state between calls",
        tensors=("dk", "dq", "dv"),
        edits=(
            ("class FusedAttention(", "_LAST = {}\n\n\nclass FusedAttention("),
            (
                "        ctx.save_for_backward(q, k, v, probs)\n",
                '        ctx.save_for_backward(q, k, v)\n        _LAST["probs"] = probs\n',
            ),
            (
                "        q, k, v, probs = ctx.saved_tensors\n",
                '        q, k, v = ctx.saved_tensors\n        probs = _LAST["probs"]\n',
            ),
        ),
        line=('_LAST["probs"] = probs', 'probs = _LAST["probs"]'),
        says="Backward takes the probabilities of the latest forward: wrong in a model with two layers.",
        scene=Scene(history="two forwards before backward", options=CAUSAL),
        right_with={"history": "one call"},
    ),
    Wrong(
        name="SAVED_WORKSPACE_BY_SHAPE",
        host=SAVED,
        kind="state between calls",
        tensors=("dk", "dq", "dv"),
        edits=(
            ("class FusedAttention(", "_WORKSPACE = {}\n\n\nclass FusedAttention("),
            (
                "        ctx.save_for_backward(q, k, v, probs)\n",
                """        ctx.save_for_backward(q, k, v)
        ctx.probs = _WORKSPACE.setdefault((probs.shape, probs.dtype), torch.empty_like(probs)).copy_(probs)
""",
            ),
            (
                "        q, k, v, probs = ctx.saved_tensors\n",
                "        (q, k, v), probs = ctx.saved_tensors, ctx.probs\n",
            ),
        ),
        line=(
            "ctx.probs = _WORKSPACE.setdefault((probs.shape, probs.dtype), torch.empty_like(probs)).copy_(probs)",
            "(q, k, v), probs = ctx.saved_tensors, ctx.probs",
        ),
        says="Probabilities are kept in one buffer for each shape: a second layer overwrites the first one's.",
        scene=Scene(history="two forwards before backward", options=CAUSAL),
        right_with={"history": "one call"},
    ),
    Wrong(
        name="SAVED_SCALES_QUERIES_IN_PLACE",
        host=SAVED,
        kind="writes into its inputs",
        tensors=("dk", "q"),
        edits=(
            (
                """        attn = torch.matmul(q, k.transpose(-2, -1))
        attn = attn.mul_(scale)
""",
                """        attn = torch.matmul(q.mul_(scale), k.transpose(-2, -1))
""",
            ),
        ),
        says="The caller's queries are scaled in place.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SAVED_DK_NOT_TRANSPOSED",
        host=SAVED,
        kind="transposition",
        tensors=("dk",),
        edits=(("torch.matmul(grad_attn.transpose(-2, -1), q)", "torch.matmul(grad_attn, q)"),),
        says="dk multiplies dS in place of its transpose, which has the same shape where Sq = Sk.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SAVED_OWN_TOKEN_HIDDEN",
        host=SAVED,
        kind="causal mask",
        tensors=ALL,
        edits=(("device=q.device).triu(diagonal=1)\n", "device=q.device).triu(diagonal=0)\n"),),
        says="A query does not see its own key.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="SAVED_BOTTOM_RIGHT",
        host=SAVED,
        kind="causal mask",
        tensors=ALL,
        edits=(("triu(diagonal=1)\n", "triu(diagonal=1 + k.size(-2) - q.size(-2))\n"),),
        says="is_causal is aligned at the last query and key, where torch's is at the first.",
        scene=Scene(queries=50, keys=70, options=CAUSAL),
        right_with={"keys": 0},
    ),
    Wrong(
        name="SAVED_GRADIENT_OF_VALUES_CLIPPED",
        host=SAVED,
        kind="magnitude",
        tensors=("dk", "dq"),
        edits=(
            (
                "grad_attn = probs * (grad_probs - inner)\n",
                "grad_attn = (probs * (grad_probs - inner)).clamp(-0.5, 0.5)\n",
            ),
        ),
        says="The gradient of the logits is clipped at 0.5: right for small gradients.",
        scene=Scene(options=CAUSAL),
    ),
]
