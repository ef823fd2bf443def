"""`flash_varlen`: called as flash_attn_varlen_func is, several sequences one behind the other."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nsa_doctor.adapters.functions.answers import output
from nsa_doctor.adapters.functions.keywords import flash_keywords
from nsa_doctor.subject.function import Arguments, Convention, Problem


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """q, k, v [T, H, D], where each sequence starts, how long the longest is, and flash-attn's keywords."""
    parts = problem.shape.parts or ((problem.shape.queries, problem.shape.keys),)
    queries, keys = [part[0] for part in parts], [part[1] for part in parts]
    device = tensors["q"].device
    return Arguments(
        positional=(
            *(tensors[name] for name in ("q", "k", "v")),
            *(_starts(lengths, device) for lengths in (queries, keys)),
            *(max(lengths) for lengths in (queries, keys)),
        ),
        keywords=flash_keywords(problem, tensors),
    )


def _starts(lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)


CONVENTION = Convention(
    name="flash_varlen",
    summary="f(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, …), [T, H, D]",
    layout="shd",
    arguments=arguments,
    read=output,
    refuses={"mask": "flash-attn takes no mask tensor", "top_left": "flash-attn aligns masks at the bottom right"},
    has_parts=True,
    lse_gradient="may",
)
