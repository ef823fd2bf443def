"""`flex`: called as torch.nn.attention.flex_attention.flex_attention is, with a block mask made for each length."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.adapters.functions import keywords
from nsa_doctor.adapters.functions.answers import output
from nsa_doctor.subject.function import Arguments, Convention, Keyword, Problem


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """q, k, v [B, H, S, D], a block mask, a score_mod for a cap or a bias."""
    spec, shape, q = problem.spec, problem.shape, tensors["q"]
    named = list(keywords.scale(problem, "scale"))
    if spec.is_causal or spec.window or spec.has_mask:
        from torch.nn.attention.flex_attention import create_block_mask  # compiles nothing until it is called

        seen = problem.seen.to(q.device).expand(shape.batch, 1, -1, -1)
        blocks = create_block_mask(
            lambda b, h, i, j: seen[b, 0, i, j], shape.batch, None, shape.queries, shape.keys, device=str(q.device)
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
        return score if steps is None else score - steps[h] * (i + shape.keys - shape.queries - j).abs()

    return change


CONVENTION = Convention(
    name="flex",
    summary="f(q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False), [B, H, S, D]",
    layout="bhsd",
    arguments=arguments,
    read=output,
    align="top_left",
)
