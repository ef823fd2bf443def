"""How small each size of a configuration becomes: few layers of every kind, short windows, narrow everything."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

VOCABULARY = 128
POSITIONS = 256
_MOST_LAYERS = 6
_WIDEST = 64
_SCORING_HEADS = 32  # of scores that are cut off at zero: with few heads whole rows of them are, and tie
_HEADS, _EXPANDED_HEADS = 4, 8  # of 16 channels each: as wide as the model, and twice as wide

# The first pattern that fits the whole name of a field counts. Powers of two divide each other.
_SIZES: tuple[tuple[str, int], ...] = (
    (r"\w*(?<!type_)vocab(_size)?(_per_layer_input|_base)?", VOCABULARY),
    (r"\w*max_(position_embeddings|source_positions|target_positions|seq_len)|n_positions|n_ctx", POSITIONS),
    (r"model_max_length|context_length|original_max_position_embeddings", POSITIONS),
    (r"num_attention_groups|\w*linear_num_key_heads", 2),
    (r"mamba_n_heads|mamba_num_heads", _EXPANDED_HEADS),
    (r"index(er)?_n_heads", _SCORING_HEADS),
    (r"(\w*_)?(num|n)_(\w+_)?heads?|n_head|\w*attention_heads", _HEADS),
    (r"qk_head_dim", 24),
    (r"\w*rope_head_dim|rotary_dim|d_rel", 8),
    (r"\w*qk_nope_head_dim|\w*head_dim|d_head|dim_head|\w*_d_head|\w*head_size|kv_channels|mamba_headdim", 16),
    (r"(sliding_window|window)(_size|_len)?|attention_window_size|local_attention\w*|keep_window_size", 8),
    (r"index_topk|num_(sparse|index)_topk", 8),
    (r"index_topk_blocks|moe_topk|num_experts_per_tok(en)?|moe_k|num_selected_experts", 2),
    (r"index_block_size|\w*attention_chunk_size|(mamba_|ssm_)?chunk_size|block_size|\w*attn_chunk_length", 16),
    (r"(num|n)_(local_|routed_)?experts|moe_num_experts|zero_expert_num", 4),
    (r"(num|n)_shared_experts", 1),
    (r"(num|n)_(expert_)?groups?", 2),
    (r"topk_group|first_k_dense_replace|num_dense_layers|max_window_layers|num_kv_shared_layers", 1),
    (r"num_nextn_predict_layers", 0),
    (r"\w*_(period|interval|frequency)|\w*_every_n_layers|\w*window_pattern|layer_group_size|\w*sparse_step", 2),
    (r"\w*_offset|\w*_layer_start_index", 1),
    (r"\w*(state_size|d_state)|\w*(dt|time_step|lora)_rank|\w*_rank", 16),
    (r"n_embd|n_inner", _WIDEST),
    (r"patch_size|num_mel_bins|image_size", 16),
)
_COUNTS = r"\w*vocab(_size)?|\w*experts|\w*_id"
_LEFT_EMPTY = re.compile(r"head_dim|(num|n)_(local_|routed_)?experts|num_experts_per_tok(en)?|n_shared_experts")
_LAYERS = re.compile(
    r"num_hidden_layers|n_layers?|num_layers|(num_)?(encoder|decoder)_layers|num_blocks|num_layers_per_stack"
)
_WIDTHS = re.compile(r"\w*(size|dim|width|rank|inner|ff|d_model|n_embd|dff|d_ssm|_extent|distance|length)")
_KEPT = re.compile(r"(\w*_)?(conv|kernel|expand|multiple|type|hc|ngram|patching|batch|num|n|axial)(_\w+)?")
_INDICES = re.compile(r"\w*(indices|idxs|_layer_ids|mlp_only_layers|moe_layers)")


def num_layers(values: Mapping[str, Any]) -> int | None:
    """How many layers a configuration has; None where it does not say."""
    counts = [value for name, value in values.items() if _LAYERS.fullmatch(name) and is_count(value)]
    return max(counts, default=None)


def layers_to_keep(values: Mapping[str, Any], times: int = 1) -> list[int]:
    """Layers that show every kind that the lists of a configuration tell apart, two at least and six at most.

    times: how often each kind is there, where that is possible.
    """
    count = num_layers(values) or 0
    per_layer = [value for value in values.values() if isinstance(value, (list, tuple)) and len(value) == count]
    kinds: dict[str, list[int]] = {}
    for layer in range(count):
        kinds.setdefault(repr([value[layer] for value in per_layer]), []).append(layer)
    kept = [layer for layers in kinds.values() for layer in layers[:times]][:_MOST_LAYERS]
    fewest = max((len(value) for value in values.values() if _is_pattern(value)), default=2)
    return sorted({*kept, *range(max(0, min(fewest, count) - len(kept)) and min(fewest, count))}) or [0, 1]


def _is_pattern(value: Any) -> bool:
    """Whether it names the kinds of a few layers, which repeat."""
    is_short = isinstance(value, (list, tuple)) and len(value) <= _MOST_LAYERS
    return is_short and len(set(map(str, value))) > 1 and all(isinstance(each, str) for each in value)


def small_sizes(
    values: Mapping[str, Any], *, is_grouped: bool, times: int, is_narrow: bool
) -> Iterator[tuple[str, Any]]:
    """Names and values of the fields that a small model has differently; two queries share a key where `is_grouped`."""
    layers = layers_to_keep(values, times)
    count = num_layers(values)
    for name, value in values.items():
        if _INDICES.fullmatch(name):
            yield name, [len(layers) - 1] if value is None else [each for each in value if each < len(layers)] or [1]
        elif _LAYERS.fullmatch(name) and is_count(value):
            yield name, max(2, len(layers))
        elif isinstance(value, (list, tuple)) and len(value) == count:
            yield name, [_small(name, value[layer]) for layer in layers]
        elif is_key_value_heads(name) and is_narrow:
            yield name, 1 if value == 1 else 2 if is_grouped else _HEADS
        elif name == "num_heads" and "expand" in values:
            yield name, _EXPANDED_HEADS
        elif value is None and _LEFT_EMPTY.fullmatch(name):
            yield name, _small(name, VOCABULARY)
        elif is_count(value) and value > 0 and (is_narrow or re.fullmatch(_COUNTS, name)):
            yield name, _small(name, value)


def is_key_value_heads(name: str) -> bool:
    """Whether a field says how many heads of keys there are: as many as of queries where it is left out."""
    return re.fullmatch(r"\w*(key_value|kv)_heads|num_query_groups", name) is not None


def is_count(value: Any) -> bool:
    """Whether it is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def _small(name: str, value: Any) -> Any:
    """One value as a small model has it."""
    if not is_count(value):
        return value
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            return min(size, value)
    if name.endswith(("_token_id", "_token_index", "_id", "_index")):
        return value % VOCABULARY
    if _WIDTHS.fullmatch(name) and not _KEPT.fullmatch(name):
        return min(_WIDEST, value)
    return value
