"""Odd functions that are right, in files of their own."""

from tests.gallery_functions.planting import Healthy, Host
from tests.gallery_functions.scenes import Scene

CAUSAL = {"causal": True}
PACK = {"lengths": (30, 41, 17), "key_lengths": (33, 41, 20)}


def _own(name: str, file: str, function: str, like: str, says: str, scene: Scene) -> Healthy:
    return Healthy(name=name, host=Host(file=file, function=function, like=like), says=says, scene=scene)


HEALTHY = [
    _own(
        "HEALTHY_PARTIAL",
        "einsum_partial.py",
        "windowed_attention",
        "flash",
        "A functools.partial with a window of 24, by einsum.",
        Scene(options=CAUSAL | {"window": (23, 0)}),
    ),
    _own(
        "HEALTHY_OBJECT",
        "callable_object.py",
        "attention",
        "sdpa",
        "An object with __call__ that keeps its masks.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_VMAPPED",
        "vmapped.py",
        "attention",
        "sdpa",
        "One head, mapped over heads and batch by torch.vmap.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_SCRIPTED",
        "scripted.py",
        "attention",
        "sdpa",
        "Compiled by torch.jit.script: a signature that inspect may not see.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_WRAPPED_SDPA",
        "wrapped_sdpa.py",
        "flash_attn_func",
        "flash",
        "torch's own attention in flash-attn's layout; it takes more keywords than it uses.",
        Scene(kv_heads=2, queries=50, keys=70, options=CAUSAL | {"window": (19, 0)}),
    ),
    _own(
        "HEALTHY_ROWS_REVERSED",
        "reversed_rows.py",
        "attention",
        "sdpa",
        "One query at a time, keys and values from the last.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_ONES_COLUMN",
        "ones_column.py",
        "attention",
        "flash",
        "Denominators by a column of ones in the values.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_MERGED_HALVES",
        "merged_halves.py",
        "ring_attention",
        "sdpa",
        "Two halves of the keys, merged by their logsumexps.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_FLOAT64_INSIDE",
        "float64_inside.py",
        "attention",
        "sdpa",
        "Computes in float64 under every dtype.",
        Scene(dtype="bfloat16", options=CAUSAL),
    ),
    _own(
        "HEALTHY_FLOAT32_INSIDE",
        "float32_inside.py",
        "flash_attention",
        "flash",
        "Computes in float32, refuses float64 and returns the logsumexp.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_OPERATOR",
        "custom_op.py",
        "attention",
        "sdpa",
        "A registered operator of torch with a gradient of its own; causal always.",
        Scene(options=CAUSAL),
    ),
    _own(
        "HEALTHY_EAGER_WEIGHTS",
        "eager_weights.py",
        "eager_attention_forward",
        "hf",
        "For transformers, with weights beside the output, which is a transposed view.",
        Scene(kv_heads=2, options=CAUSAL | {"mask": "padding"}),
    ),
    _own(
        "HEALTHY_DECODE_BY_MASK",
        "decode_masked.py",
        "attn_with_kvcache",
        "flash_kvcache",
        "One masked product over the whole cache.",
        Scene(lengths=(5, 37, 64), queries=3, new_tokens=3, kv_heads=2, capacity=96, options=CAUSAL),
    ),
    _own(
        "HEALTHY_PADDED_PACK",
        "varlen_padded.py",
        "varlen_attention",
        "flash_varlen",
        "Packed sequences padded to a batch and taken out again.",
        Scene(**PACK, kv_heads=2, options=CAUSAL),
    ),
    _own(
        "HEALTHY_BLOCK_DIAGONAL",
        "varlen_block_diagonal.py",
        "attention",
        "flash_varlen",
        "Packed sequences under one block-diagonal mask.",
        Scene(**PACK, kv_heads=2, options=CAUSAL | {"window": (9, 0)}),
    ),
    _own(
        "HEALTHY_FLEX_DENSE",
        "flex_dense.py",
        "flex_attention",
        "flex",
        "The mask function is asked for every pair; no block is skipped.",
        Scene(kv_heads=2, options=CAUSAL | {"block_mask": "selected", "score_mod": "distance"}),
    ),
    _own(
        "HEALTHY_PAIRS",
        "segment_sum.py",
        "attention",
        "flash",
        "Gather and scatter over the pairs that see each other.",
        Scene(options=CAUSAL | {"window": (19, 0)}),
    ),
]
