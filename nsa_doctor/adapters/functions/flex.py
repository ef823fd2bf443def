"""`flex`: called as torch.nn.attention.flex_attention.flex_attention is, with a block mask made for each length."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.adapters.functions import keywords
from nsa_doctor.adapters.functions.answers import output
from nsa_doctor.subject.function import Arguments, Convention, Keyword, Problem

_USUAL_BLOCK = 128


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """q, k, v [B, H, S, D], a block mask, a score_mod for a cap or a bias."""
    spec, shape, q = problem.spec, problem.shape, tensors["q"]
    named = list(keywords.scale(problem, "scale"))
    if spec.is_causal or spec.window or spec.has_mask:
        from torch.nn.attention.flex_attention import create_block_mask  # compiles nothing until it is called

        seen = problem.seen.to(q.device).expand(shape.batch, -1, -1, -1)
        is_alike, heads = seen.shape[1] == 1, None if seen.shape[1] == 1 else shape.heads
        blocks = create_block_mask(
            lambda b, h, i, j: seen[b, 0 if is_alike else h, i, j],
            *(shape.batch, heads, shape.queries, shape.keys),
            device=str(q.device),
            BLOCK_SIZE=problem.constants.get("block_size", _USUAL_BLOCK),
        )
        word = " and ".join(spec.words)
        named.append(Keyword(names=("block_mask",), value=blocks, word=word))
    if (change := _change(problem, q.device)) is not None:
        word = spec.word_of("softcap") if spec.softcap else "alibi"
        named.append(Keyword(names=("score_mod",), value=change, word=word))
    if spec.ratio > 1:
        named.append(Keyword(names=("enable_gqa",), value=True, word=spec.word_of("gqa")))
    named += keywords.sinks(problem, tensors)
    return Arguments(positional=(q, tensors["k"], tensors["v"]), keywords=tuple(named))


def _change(problem: Problem, device: torch.device) -> Callable[..., Tensor] | None:
    cap, slopes, shape = problem.spec.softcap, problem.slopes, problem.shape
    if not cap and slopes is None:
        return None
    steps = None if slopes is None else slopes.to(device)

    def change(score: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        score = cap * torch.tanh(score / cap) if cap else score
        if steps is None:
            return score
        slope = steps[h] if steps.ndim == 1 else steps[b, h]
        return score - slope * (i + shape.keys - shape.queries - j).abs()

    return change


CONVENTION = Convention(
    name="flex",
    summary="f(q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False), [B, H, S, D]",
    layout="bhsd",
    arguments=arguments,
    read=output,
    align="top_left",
    has_slopes_of_rows=True,
    lse_gradient="must",
    ways={"with blocks of 16": {"block_size": 16}},
)
