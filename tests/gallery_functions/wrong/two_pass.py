"""Wrong edits of the attention in two passes."""

from tests.gallery_functions.files import TWO_PASS
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="TWO_PASS_IGNORES_SCALE",
        host=TWO_PASS,
        kind="scale",
        tensors=ALL,
        edits=(
            (
                "    if scale is None:\n        scale = 1.0 / math.sqrt(query.shape[-1])\n",
                "    scale = 1.0 / math.sqrt(query.shape[-1])\n",
            ),
        ),
        line=("scale = 1.0 / math.sqrt(query.shape[-1])",),
        says="A scale that is given is ignored.",
        scene=Scene(options=CAUSAL | {"scale": 0.4}),
    ),
    Wrong(
        name="TWO_PASS_NAN_IN_EMPTY_ROWS",
        host=TWO_PASS,
        kind="fully masked rows",
        tensors=ALL,
        edits=(("        row_max = row_max.masked_fill(row_max == -math.inf, 0.0)\n", ""),),
        line=("p = torch.exp(s - row_max)", "row_max = torch.maximum(row_max, s.amax(-1, keepdim=True))"),
        says="A query whose mask hides every key is NaN: -inf is subtracted from -inf.",
        scene=Scene(options={"mask": "rows"}),
        right_with={"options": {"mask": "random"}},
    ),
    Wrong(
        name="TWO_PASS_NO_MAX",
        host=TWO_PASS,
        kind="overflow",
        tensors=ALL,
        edits=(
            (
                "        row_max = row_max.masked_fill(row_max == -math.inf, 0.0)\n",
                "        row_max = torch.zeros_like(row_max)\n",
            ),
        ),
        says="The maximum is not subtracted: exp overflows where logits pass 88.",
        scene=Scene(gain=50.0, options=CAUSAL),
        right_with={"gain": 1.0},
    ),
    Wrong(
        name="TWO_PASS_MASK_OF_FIRST_ROW",
        host=TWO_PASS,
        kind="batch",
        tensors=ALL,
        edits=(("part = mask[..., start:stop]\n", "part = mask[:1, ..., start:stop]\n"),),
        says="The mask of the first row of the batch serves all rows: wrong for padding that differs.",
        scene=Scene(options={"mask": "padding"}),
        right_with={"batch": 1},
    ),
    Wrong(
        name="TWO_PASS_MASK_FORGOTTEN_IN_BACKWARD",
        host=TWO_PASS,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(("_bias(mask, start, stop, ctx.is_causal, ", "_bias(None, start, stop, ctx.is_causal, "),),
        says="Backward knows is_causal, but not attn_mask.",
        scene=Scene(options={"mask": "random"}),
    ),
    Wrong(
        name="TWO_PASS_CAUSAL_FORGOTTEN_IN_BACKWARD",
        host=TWO_PASS,
        kind="mask in backward",
        tensors=("dk", "dq", "dv"),
        edits=(("_bias(mask, start, stop, ctx.is_causal, ", "_bias(mask, start, stop, False, "),),
        says="Backward knows attn_mask, but not is_causal.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TWO_PASS_DROPS_WHEN_TOLD_NOT_TO",
        host=TWO_PASS,
        kind="dropout",
        tensors=ALL,
        edits=(
            ("CHUNK = 48\n", "CHUNK = 48\nDROPOUT = 0.1\n"),
            ("attn_mask, scale, is_causal, dropout_p)\n", "attn_mask, scale, is_causal, dropout_p or DROPOUT)\n"),
        ),
        line=("return _TwoPass.apply(query, key, value, attn_mask, scale, is_causal, dropout_p or DROPOUT)",),
        says="dropout_p=0.0 is taken for not given, and the default of 0.1 drops.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TWO_PASS_DV_BEFORE_DROPOUT",
        host=TWO_PASS,
        kind="dropout",
        tensors=("dv",),
        edits=(("dv[..., start:stop, :] = p_drop.mT @ do\n", "dv[..., start:stop, :] = p.mT @ do\n"),),
        says="dv is summed with the probabilities before dropout: right while nothing is dropped.",
        scene=Scene(queries=50, dtype="float64", history="seeded dropout", options=CAUSAL | {"dropout": 0.3}),
    ),
    Wrong(
        name="TWO_PASS_DP_WITHOUT_DROPOUT",
        host=TWO_PASS,
        kind="dropout",
        tensors=("dk", "dq"),
        edits=(("                dp = dp * kept\n", ""),),
        line=("ds = p * (dp - delta)", "p_drop = p * kept"),
        says="dP is not masked by what was dropped: right while nothing is.",
        scene=Scene(queries=50, dtype="float64", history="seeded dropout", options=CAUSAL | {"dropout": 0.3}),
    ),
    Wrong(
        name="TWO_PASS_SCALE_OF_NEXT_POWER_OF_TWO",
        host=TWO_PASS,
        kind="head size",
        tensors=ALL,
        edits=(("math.sqrt(query.shape[-1])", "math.sqrt(1 << (query.shape[-1] - 1).bit_length())"),),
        says="The default scale is that of the head size rounded up to a power of two: wrong at D=24, 80 or 96.",
        scene=Scene(dim=24, options=CAUSAL),
        right_with={"dim": 32},
    ),
    Wrong(
        name="TWO_PASS_KEY_TAIL_DROPPED",
        host=TWO_PASS,
        kind="last partial tile",
        tensors=ALL,
        edits=(
            (
                "starts = range(0, num_keys, CHUNK)\n",
                "starts = range(0, max(num_keys // CHUNK, 1) * CHUNK, CHUNK)\n",
            ),
        ),
        says="The last partial chunk of keys is left out where there are more than 48 and no multiple of 48.",
        scene=Scene(),
        right_with={"queries": 96},
    ),
    Wrong(
        name="TWO_PASS_PRODUCT_IN_BFLOAT16",
        host=TWO_PASS,
        kind="precision",
        tensors=("dk", "dq", "out"),
        edits=(
            (
                "acc += p @ vf[..., start:stop, :]\n",
                "acc += p.bfloat16() @ vf[..., start:stop, :].bfloat16()\n",
            ),
        ),
        says="P V is multiplied in bfloat16 whatever the inputs' dtype: two digits under float32.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="TWO_PASS_GRADIENT_TAIL_ZERO",
        host=TWO_PASS,
        kind="last partial tile",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "        for start in range(0, num_keys, CHUNK):\n",
                "        for start in range(0, num_keys - CHUNK + 1, CHUNK):\n",
            ),
        ),
        says="Keys of the last partial chunk get no gradient (S % 48 != 0).",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 96},
    ),
    Wrong(
        name="TWO_PASS_DK_OF_DEFAULT_SCALE",
        host=TWO_PASS,
        kind="scale of a gradient",
        tensors=("dk",),
        edits=(("        dk *= ctx.scale\n", "        dk *= q.shape[-1] ** -0.5\n"),),
        says="dk has the default scale whatever was given: right without `scale`.",
        scene=Scene(options=CAUSAL | {"scale": 0.4}),
        right_with={"options": {"causal": True}},
    ),
    Wrong(
        name="TWO_PASS_DENOMINATOR_IN_HALF",
        host=TWO_PASS,
        kind="precision",
        tensors=ALL,
        edits=(
            (
                "denom += p.sum(-1, keepdim=True)\n",
                "denom = (denom.half() + p.half().sum(-1, keepdim=True)).to(dtype)\n",
            ),
        ),
        says="The denominators are summed in half precision under float32 inputs.",
        scene=Scene(options=CAUSAL),
    ),
]
