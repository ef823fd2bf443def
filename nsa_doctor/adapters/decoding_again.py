"""A way to decode in which a forward is given all tokens once more beside its cache, and leaves out what that holds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.decoding_way import Decoding
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.tensors.answer import split_answer
from nsa_doctor.subject.contract import Subject

_PROMPT, _MORE = 4, 2

Call = Callable[[nn.Module, Tensor, Any], Any]
Split = Callable[[Any, Tensor], tuple[Tensor, Any]]


def by_all_tokens(call: Call, split: Split, words: str, *, holds_the_past: bool, is_sure: bool) -> Decoding:
    """The way; `call` takes all tokens and the cache, or None, and `split` an answer to tokens of which it speaks.

    What is handed on are the tokens so far, and the cache. Where it `is_sure`, no other step is what the module wants.
    """

    def prefill(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        output, cache = split(call(module, x, None), x)
        return output, (x, cache)

    def step(module: nn.Module, x: Tensor, held: Any) -> tuple[Tensor, Any]:
        tokens, cache = torch.cat((held[0], x), dim=1), held[1]
        answer = call(module, tokens, cache)
        output, cache = split(answer, tokens[:, -_num_answered(answer, x) :])
        return output[:, -x.shape[1] :], (tokens, cache)

    others = () if is_sure else None
    return Decoding(words, prefill, step, is_certain=False, goes_on=True, holds_the_past=holds_the_past, others=others)


def _num_answered(answer: Any, x: Tensor) -> int:
    """Of how many tokens an answer speaks: as many as x has, or more where it left out fewer."""
    output, _ = split_answer(answer, lambda each: each.ndim == 3 and each.is_floating_point())
    return max(output.shape[1], x.shape[1]) if isinstance(output, Tensor) else x.shape[1]


def leaves_out_those_known(subject: Subject, call: Call, split: Split) -> bool:
    """Whether the answer to all tokens beside a cache of the first ones is of those behind them alone."""
    sp = built(subject)
    x = sp.input(_PROMPT + _MORE)
    with torch.no_grad():
        prompt = x[:, :_PROMPT].clone()
        answer = call(sp.module, x.clone(), split(call(sp.module, prompt, None), prompt)[1])
    output, _ = split_answer(answer, lambda each: each.ndim == 3 and each.is_floating_point())
    return isinstance(output, Tensor) and output.shape[1] == _MORE


def spares_tokens(subject: Subject, way: Decoding) -> bool:
    """Whether a step reads the cache: that of another prompt gives another output, as it does not where all is new."""
    sp = built(subject)
    x, another = sp.input(_PROMPT + _MORE), sp.input(_PROMPT + _MORE, seed=subject.seed + 1)
    with torch.no_grad():
        cache, other = (way.prefill(sp.module, each[:, :_PROMPT].clone())[1] for each in (x, another))
        mixed = (cache[0], other[1])
        one, two = (way.step(sp.module, x[:, _PROMPT:].clone(), each)[0] for each in (cache, mixed))
    return not torch.allclose(one, two)
