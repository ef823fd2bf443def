"""`hf`: called as a function of transformers' AttentionInterface is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.functions import keywords
from nsa_doctor.subject.function import Arguments, Convention, Keyword, Problem


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """A module that says what it is, q, k, v [B, H, S, D], an additive mask, and the scale by name."""
    spec, q = problem.spec, tensors["q"]
    mask = None
    is_implied = problem.constants.get("is_mask_implied", False)
    if (spec.is_causal or spec.window or spec.has_mask) and not is_implied:
        seen = problem.seen.to(q.device).expand(problem.shape.batch, -1, -1, -1)
        mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, torch.finfo(q.dtype).min)
    scaling = Keyword(names=("scaling", *keywords.SCALE), value=problem.scale, word="the convention")
    window = (
        [Keyword(names=("sliding_window",), value=spec.window[0] + 1, word="window", need="may")] if spec.window else []
    )
    named = (scaling, *window, *keywords.softcap(problem), *keywords.sinks(problem, tensors, "s_aux"))
    return Arguments(positional=(_module(problem), q, tensors["k"], tensors["v"], mask), keywords=named)


def _module(problem: Problem) -> nn.Module:
    """What such functions ask their module for."""
    module = nn.Module().eval()
    about: Mapping[str, Any] = {
        "num_key_value_groups": problem.spec.ratio,
        "is_causal": problem.spec.is_causal,
        "layer_idx": 0,
        "head_dim": problem.shape.head,
        "scaling": problem.scale,
        "attention_dropout": 0.0,
        "sliding_window": None,
    }
    for name, value in about.items():
        setattr(module, name, value)
    return module


def read(result: Any, problem: Problem) -> Mapping[str, Any]:
    """The first of (output [B, S, H, D], weights or None)."""
    return {"out": result[0] if isinstance(result, tuple) else result}


CONVENTION = Convention(
    name="hf",
    summary="f(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs) -> (out, weights)",
    layout="bhsd",
    output="bshd",
    arguments=arguments,
    read=read,
    ways={"without a mask, the module being causal": {"is_mask_implied": True, "is_optional": True}},
)
