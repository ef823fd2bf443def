"""`nsa`: called as public operators of Native Sparse Attention are, with the chosen blocks given."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from nsa_doctor.adapters.functions import keywords
from nsa_doctor.adapters.functions.answers import output
from nsa_doctor.adapters.functions.block_choice import chosen, fewer, seen_by_choice
from nsa_doctor.core.function_spec import FunctionSpec
from nsa_doctor.subject.function import Arguments, Branch, Convention, Keyword, Need, Problem, Shape, Sparse


def make(spec: FunctionSpec, shape: Shape, chance: torch.Generator) -> Sparse:
    """One pair of keys and values for the chosen blocks and, with a window, for the newest keys too."""
    size = (shape.batch, shape.keys, shape.groups)
    inputs = {
        "k": torch.randn(*size, shape.head, generator=chance),
        "v": torch.randn(*size, shape.value, generator=chance),
        "g_slc": torch.rand(shape.batch, shape.queries, shape.heads, generator=chance),
    }
    slots = chosen(shape, spec.block, spec.num_blocks, chance)
    branches = [Branch(seen=seen_by_choice(slots, shape, spec.block), gate="g_slc")]
    if spec.window is not None:
        inputs["g_swa"] = torch.rand(shape.batch, shape.queries, shape.heads, generator=chance)
        distance = torch.arange(shape.queries)[:, None] - torch.arange(shape.keys)
        seen = (distance >= 0) & (distance <= spec.window[0])
        branches.append(Branch(seen=seen[None, None], gate="g_swa"))
    return Sparse(inputs=inputs, branches=tuple(branches), constants={"slots": slots})


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """Queries, keys, values, gates [B, S, H] and block_indices [B, S, G, n], 0 where none is chosen."""
    spec, slots = problem.spec, problem.constants["slots"].to(tensors["q"].device)
    counts = (slots >= 0).sum(-1)
    words = spec.word_of("topk")
    need: Need = "must" if problem.constants.get("is_counted") else "may"
    named = [
        Keyword(names=("g_slc", "gate_slc", "g_sel"), value=tensors["g_slc"], word=words),
        Keyword(names=("block_indices",), value=slots.clamp_min(0), word=words),
        Keyword(names=("block_counts",), value=counts, word=words, need=need),
        Keyword(names=("block_size",), value=spec.block, word=spec.word_of("block")),
    ]
    if spec.window is not None:
        word = spec.word_of("window")
        named.append(Keyword(names=("g_swa", "gate_swa", "g_win"), value=tensors["g_swa"], word=word))
        named.append(Keyword(names=("window_size",), value=spec.window[0] + 1, word=word))
    named += keywords.scale(problem, "scale")
    return Arguments(positional=(tensors["q"], tensors["k"], tensors["v"]), keywords=tuple(named))


def variants(problem: Problem) -> Mapping[str, Problem]:
    """Queries of fewer blocks than there are slots for, which the counts alone say: slots behind them hold 0."""
    slots = fewer(problem.constants["slots"])
    chosen_ones, *rest = problem.branches
    seen = seen_by_choice(slots, problem.shape, problem.spec.block)
    counted = replace(
        problem,
        branches=(replace(chosen_ones, seen=seen), *rest),
        constants={**problem.constants, "slots": slots, "is_counted": True},
    )
    return {"with fewer blocks than slots": counted}


CONVENTION = Convention(
    name="nsa",
    summary="f(q, k, v, g_slc, g_swa, block_indices, block_counts, block_size, window_size, scale), [B, S, H, D]",
    layout="bshd",
    arguments=arguments,
    read=output,
    make=make,
    variants=variants,
    refuses=dict.fromkeys(("mask", "softcap", "alibi", "sinks", "full"), "the operators have no argument for it"),
)
