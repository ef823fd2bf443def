"""Wrong edits of the checkpointed attention for transformers."""

from tests.gallery_functions.files import CHECKPOINTED
from tests.gallery_functions.planting import Wrong
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
ALL = ("dk", "dq", "dv", "out")

WRONG = [
    Wrong(
        name="CHECKPOINTED_MASK_OF_FIRST_CHUNK",
        host=CHECKPOINTED,
        kind="mask",
        tensors=ALL,
        edits=(("mask = attention_mask[:, :, start:stop]\n", "mask = attention_mask[:, :, : stop - start]\n"),),
        says="Every chunk of queries has the first one's rows of the mask: right up to 32 queries.",
        scene=Scene(options=CAUSAL | {"mask": "padding"}),
        right_with={"queries": 32},
    ),
    Wrong(
        name="CHECKPOINTED_HEADS_TILED",
        host=CHECKPOINTED,
        kind="grouped heads",
        tensors=ALL,
        edits=(
            (
                "states[:, :, None].expand(batch, heads, n_rep, length, dim)\n",
                "states[:, None].expand(batch, n_rep, heads, length, dim)\n",
            ),
        ),
        says="Key heads are repeated one after the other, not each beside its copies.",
        scene=Scene(kv_heads=2, options=CAUSAL),
    ),
    Wrong(
        name="CHECKPOINTED_SCALING_IGNORED",
        host=CHECKPOINTED,
        kind="scale",
        tensors=ALL,
        edits=(
            (
                "    if scaling is None:\n        scaling = query.shape[-1] ** -0.5\n",
                "    scaling = query.shape[-1] ** -0.5\n",
            ),
        ),
        line=("scaling = query.shape[-1] ** -0.5",),
        says="The scaling that the module hands over is ignored.",
        scene=Scene(options=CAUSAL | {"scale": 0.4}),
    ),
    Wrong(
        name="CHECKPOINTED_RESHAPED_NOT_TRANSPOSED",
        host=CHECKPOINTED,
        kind="layout of the output",
        tensors=ALL,
        edits=(
            (
                "return output.transpose(1, 2).contiguous(), None",
                "return output.reshape(output.shape[0], num_queries, -1, output.shape[-1]), None",
            ),
        ),
        says="[B, H, S, D] is reshaped to [B, S, H, D] and not transposed.",
        scene=Scene(options=CAUSAL),
    ),
    Wrong(
        name="CHECKPOINTED_LATE_CLOSURE",
        host=CHECKPOINTED,
        kind="recomputation",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "out = checkpoint(_one_chunk, part, key, value, mask, s_aux, scaling, use_reentrant=False)\n",
                "out = checkpoint(lambda: _one_chunk(part, key, value, mask, s_aux, scaling), use_reentrant=False)\n",
            ),
        ),
        says="The closure reads `part` and `mask` when it is called again: backward recomputes the last chunk for all "
        "(S a multiple of 32; torch raises at others).",
        scene=Scene(queries=64, options=CAUSAL),
        right_with={"queries": 32},
    ),
    Wrong(
        name="CHECKPOINTED_MASK_BUFFER_REUSED",
        host=CHECKPOINTED,
        kind="recomputation",
        tensors=("dk", "dq", "dv"),
        edits=(
            (
                "    outputs = []\n",
                "    outputs = []\n    buffer = query.new_empty(CHUNK, num_keys)\n",
            ),
            (
                "            mask = _causal_mask(start, stop, num_keys, num_keys - num_queries, query)\n",
                """            mask = buffer[: stop - start]
            mask.copy_(_causal_mask(start, stop, num_keys, num_keys - num_queries, query))
""",
            ),
            (
                "part, key, value, mask, s_aux, scaling, use_reentrant=False)\n",
                "part, key, value, mask=mask, sinks=s_aux, scaling=scaling, use_reentrant=False)\n",
            ),
        ),
        line=(
            "buffer = query.new_empty(CHUNK, num_keys)",
            "mask = buffer[: stop - start]",
            "mask.copy_(_causal_mask(start, stop, num_keys, num_keys - num_queries, query))",
        ),
        says="All chunks share one buffer for the mask: backward recomputes with the last chunk's.",
        scene=Scene(options=CAUSAL),
        right_with={"queries": 32},
    ),
    Wrong(
        name="CHECKPOINTED_FIRST_KEY_TAKEN_FOR_SINK",
        host=CHECKPOINTED,
        kind="sinks",
        tensors=("dk", "dq", "dsinks", "dv", "out"),
        edits=(("probs = probs[..., :-1]\n", "probs = probs[..., 1:]\n"),),
        says="The sink is the last column, and the first is cut off: every key has its neighbour's weight.",
        scene=Scene(options=CAUSAL | {"sinks": True}),
    ),
    Wrong(
        name="CHECKPOINTED_MASK_OF_FIRST_ROW",
        host=CHECKPOINTED,
        kind="batch",
        tensors=ALL,
        edits=(("mask = attention_mask[:, :, start:stop]\n", "mask = attention_mask[:1, :, start:stop]\n"),),
        says="The mask of the first row of the batch serves all rows: wrong for padding that differs.",
        scene=Scene(options=CAUSAL | {"mask": "padding"}),
        right_with={"batch": 1},
    ),
    Wrong(
        name="CHECKPOINTED_SINKS_DETACHED",
        host=CHECKPOINTED,
        kind="sinks",
        tensors=("dsinks",),
        edits=(("column = sinks.reshape(1, -1, 1, 1)", "column = sinks.data.reshape(1, -1, 1, 1)"),),
        says="Sinks are read through `.data` and never learn.",
        scene=Scene(options=CAUSAL | {"sinks": True}),
    ),
]
