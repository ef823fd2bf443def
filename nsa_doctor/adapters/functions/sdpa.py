"""`sdpa`: called as torch.nn.functional.scaled_dot_product_attention is."""

from collections.abc import Mapping

import torch
from torch import Tensor

from nsa_doctor.adapters.functions import keywords
from nsa_doctor.adapters.functions.answers import output
from nsa_doctor.subject.function import Arguments, Convention, Keyword, Problem


def arguments(problem: Problem, tensors: Mapping[str, Tensor]) -> Arguments:
    """q, k, v [B, H, S, D], and the mask as a tensor where is_causal cannot say it."""
    spec, named = problem.spec, list(keywords.scale(problem, "scale"))
    bias = _bias(problem, tensors)
    is_plain = not (spec.window or spec.has_mask or (spec.is_causal and spec.align == "bottom_right"))
    if bias is not None:
        word = "mask" if "bias" in tensors else "alibi"
        named.append(Keyword(names=("attn_mask", "attn_bias", "mask"), value=bias, word=word))
    if is_plain and (bias is None or spec.is_built_in):
        named.insert(0, keywords.causal(problem, "is_causal"))
    elif bias is None:
        words = [spec.word_of(word) for word in ("mask", "window", "bottom_right") if spec.word_of(word) in spec.words]
        seen = problem.seen.to(tensors["q"].device).expand(problem.shape.batch, -1, -1, -1)
        seen = seen[:, :, :1] if problem.constants.get("is_padding") else seen
        named.append(Keyword(names=("attn_mask", "mask"), value=seen, word=" and ".join(words)))
    if spec.ratio > 1:
        named.append(Keyword(names=("enable_gqa",), value=True, word=spec.word_of("gqa"), need="may"))
    named += [*keywords.softcap(problem), *keywords.sinks(problem, tensors)]
    return Arguments(positional=(tensors["q"], tensors["k"], tensors["v"]), keywords=tuple(named))


def _bias(problem: Problem, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """What is added to the scores: the bias given, or that of alibi with its mask in it; None for neither."""
    if problem.slopes is None:
        return tensors.get("bias")
    shape = problem.shape
    query = torch.arange(shape.queries)[:, None] + shape.keys - shape.queries
    bias = -problem.slopes[..., None, None] * (query - torch.arange(shape.keys)).abs()
    return bias.reshape(-1, *bias.shape[-3:]).masked_fill(~problem.seen.cpu(), -torch.inf).to(tensors["q"])


CONVENTION = Convention(
    name="sdpa",
    summary="f(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False), [B, H, S, D]",
    layout="bhsd",
    arguments=arguments,
    read=output,
    align="top_left",
    has_bias=True,
)
