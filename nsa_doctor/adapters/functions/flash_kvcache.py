"""`flash_kvcache`: called as flash_attn_with_kvcache is, keys and values in a cache that is filled in part."""

from collections.abc import Mapping

import torch
from torch import Tensor

from nsa_doctor.adapters.functions.answers import output
from nsa_doctor.adapters.functions.keywords import flash_keywords
from nsa_doctor.subject.function import Arguments, Convention, Keyword, Problem


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """Q [B, Sq, H, D], k_cache and v_cache [B, Sk, G, D], how many keys each row holds; the rest by constants."""
    q, shape, constants = tensors["q"], problem.shape, problem.constants
    filled = torch.tensor(shape.filled or (shape.keys,) * shape.batch, dtype=torch.int32, device=q.device)
    caches = {name: each.to(q.device) for name, each in constants.get("caches", tensors).items()}
    counts = filled - constants.get("num_appended", 0)
    lengths = Keyword(names=("cache_seqlens",), value=counts, word="the convention")
    more = [
        Keyword(names=(name,), value=value.to(q.device), word=name) for name, value in constants.get("more", {}).items()
    ]
    return Arguments(
        positional=(q, caches["k"], caches["v"]), keywords=(lengths, *more, *flash_keywords(problem, tensors))
    )


CONVENTION = Convention(
    name="flash_kvcache",
    summary="f(q, k_cache, v_cache, cache_seqlens=…, softmax_scale=None, causal=False, …), [B, S, H, D]",
    layout="bshd",
    arguments=arguments,
    read=output,
    refuses={"mask": "flash-attn takes no mask tensor", "top_left": "flash-attn aligns masks at the bottom right"},
    is_cache=True,
    is_forward_only=True,
)
