"""Wrong edits of the attention by plain autograd."""

from tests.gallery_functions.files import CHUNKS
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="CHUNKS_DENOMINATOR_DETACHED",
        host=CHUNKS,
        kind="delta",
        tensors=("dk", "dq"),
        edits=(("weights.sum(-1, keepdim=True)\n", "weights.sum(-1, keepdim=True).detach()\n"),),
        says="The denominators are constants to autograd.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="CHUNKS_TOTALS_NOT_RESCALED",
        host=CHUNKS,
        kind="online softmax",
        tensors=ALL,
        edits=(
            (
                "denominator = sum(factor * part for factor, part in zip(factors, totals, strict=True))\n",
                "denominator = sum(totals)\n",
            ),
        ),
        says="Sums of chunks are added without their factors: right up to 56 keys.",
        scene=Scene(),
        right_with={"queries": 56},
    ),
    Wrong(
        name="CHUNKS_KEYS_DETACHED_AFTER_FIRST",
        host=CHUNKS,
        kind="gradients of some inputs",
        tensors=("dk",),
        edits=(
            (
                "_summarize(query, key[..., cols, :], value",
                "_summarize(query, key[..., cols, :] if start == 0 else key[..., cols, :].detach(), value",
            ),
        ),
        says="Keys from the 57th on are detached: their gradient is zero.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="CHUNKS_VALUE_HEADS_TILED",
        host=CHUNKS,
        kind="grouped heads",
        tensors=ALL,
        edits=(
            (
                "v = v.repeat_interleave(q.shape[-3] // v.shape[-3], dim=-3)\n",
                "v = v.repeat(1, q.shape[-3] // v.shape[-3], 1, 1)\n",
            ),
        ),
        says="Values are repeated head after head, keys each beside its copies.",
        scene=Scene(kv_heads=2, options=CAUSAL),
        right_with={"kv_heads": 0},
    ),
    Wrong(
        name="CHUNKS_ANSWERS_IN_FLOAT32",
        host=CHUNKS,
        kind="dtype",
        tensors=("out",),
        edits=(("return torch.cat(chunks, dim=-2).to(dtype)\n", "return torch.cat(chunks, dim=-2)\n"),),
        says="Under bfloat16 the answer is float32.",
        scene=Scene(dtype="bfloat16", options=CAUSAL),
        right_with={"dtype": "float32"},
    ),
    Wrong(
        name="CHUNKS_PEAK_OF_HIDDEN_KEYS",
        host=CHUNKS,
        kind="magnitude",
        tensors=ALL,
        edits=(
            (
                """    if visible is not None:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    peak = scores.amax(-1, keepdim=True).detach()
""",
                """    peak = scores.amax(-1, keepdim=True).detach()
""",
            ),
        ),
        line=("peak = scores.amax(-1, keepdim=True).detach()", "weights = torch.exp(scores - peak)"),
        says="The maximum is over hidden keys too: where one of them is larger by 104, the row underflows to zero.",
        scene=Scene(gain=80.0, options=CAUSAL),
        right_with={"gain": 1.0},
    ),
    Wrong(
        name="CHUNKS_PEAK_GRADIENT_HALF_CUT",
        host=CHUNKS,
        kind="online softmax",
        tensors=("dk", "dq"),
        edits=(
            ("peak = scores.amax(-1, keepdim=True).detach()\n", "peak = scores.amax(-1, keepdim=True)\n"),
            ("factors = [torch.exp(peak - highest)", "factors = [torch.exp(peak - highest).detach()"),
        ),
        line=(
            "peak = scores.amax(-1, keepdim=True)",
            "factors = [torch.exp(peak - highest).detach() for peak in peaks]",
        ),
        says="The gradient of the maximum enters the weights and is cut off in the factors that undo it (S > 56).",
        scene=Scene(),
        right_with={"queries": 56},
    ),
    Wrong(
        name="CHUNKS_NUMERATOR_DETACHED",
        host=CHUNKS,
        kind="delta",
        tensors=("dk", "dq"),
        edits=(("return peak, weights @ value,", "return peak, weights.detach() @ value,"),),
        says="Weights are constants in the numerators: queries and keys learn from the denominators alone.",
        scene=Scene(options=CAUSAL),
    ),
]
