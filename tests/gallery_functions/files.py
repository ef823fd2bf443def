"""The healthy files that edits are planted in, each with its function and its convention."""

from tests.gallery_functions.planting import Host

TILED = Host(file="tiled_flash.py", function="flash_attention", like="flash")
TWO_PASS = Host(file="two_pass.py", function="two_pass_attention", like="sdpa")
VARLEN = Host(file="varlen_loop.py", function="varlen_attention", like="flash_varlen")
DECODE = Host(file="decode_cache.py", function="attention_with_kvcache", like="flash_kvcache")
BANDED = Host(file="banded.py", function="sliding_window_attention", like="flash")
PACKED = Host(file="gqa_packed.py", function="packed_gqa_attention", like="sdpa")
CAPPED = Host(file="cap_alibi.py", function="capped_attention", like="flash")
FLEX = Host(file="flex_blocks.py", function="block_sparse_attention", like="flex")
CHECKPOINTED = Host(file="checkpointed_hf.py", function="chunked_attention_forward", like="hf")
SAVED = Host(file="saved_probs.py", function="fused_attention", like="sdpa")
SPLIT_K = Host(file="split_k.py", function="split_k_attention", like="flash")
CHUNKS = Host(file="plain_chunks.py", function="memory_efficient_attention", like="sdpa")
HOSTS = (TILED, TWO_PASS, VARLEN, DECODE, BANDED, PACKED, CAPPED, FLEX, CHECKPOINTED, SAVED, SPLIT_K, CHUNKS)
