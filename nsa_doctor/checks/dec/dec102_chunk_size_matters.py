"""DEC102 chunk-size-matters

Detects: tokens that come out differently when they are decoded several at a time than in one pass over all.
Matters: speculative decoding, chunked prompts and batched serving give other text than the same model one by one.
Fix: within a chunk each token sees those before it: masks, windows, block edges and positions count from the past.

Example:
    # faulty
    y = scaled_dot_product_attention(q, k, v)  # T new tokens see each other
    # correct
    seen = torch.ones(T, past + T, dtype=torch.bool).tril(past)
    y = scaled_dot_product_attention(q, k, v, attn_mask=seen)
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.decoded import departures
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.decoding import decoding_module, lengths_to_decode, require_steps_of_several
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_ROWS = 3
_FEW, _AFTER_ONE = 16, 5


def run(subject: Subject) -> Iterator[Finding]:
    sp = decoding_module(subject)
    require_steps_of_several(sp)
    short, long = lengths_to_decode(subject)
    ways = [(f"decoding {size} tokens at a time", _parts(short, size)) for size in _sizes(subject)]
    few = min(_FEW, short)  # after a prompt of one token a cache is almost empty
    ways += [(f"decoding {_AFTER_ONE} tokens at a time after a prompt of one", [1, *_parts(few - 1, _AFTER_ONE)])]
    for what, sizes in ways:
        length = sum(sizes)
        found = list(departures(sp, "DEC102", length, sizes, what, rows=_ROWS, known=[1] * length))
        if found:
            yield from found
            return
    generator = random.Random(subject.seed)  # noqa: S311 (no secret hangs on it)
    sizes = []
    while sum(sizes) < long:
        sizes.append(min(generator.randint(1, max(2, long // 6)), long - sum(sizes)))
    what = f"decoding in parts of {', '.join(map(str, sizes))} tokens"
    yield from departures(sp, "DEC102", long, sizes, what, known=[1] * long)


def _sizes(subject: Subject) -> list[int]:
    try:
        rules = rules_of(subject)
    except NotApplicableError:
        return [3, 16]
    sizes = [3, rules.l_sel + 1, rules.d, rules.l_sel]
    return list(dict.fromkeys(sizes if subject.profile == "full" else sizes[:2]))


def _parts(length: int, size: int) -> list[int]:
    return [min(size, length - start) for start in range(0, length, size)]


def planted(subject: Subject) -> Subject:
    step = subject.step
    assert step is not None

    def faulty(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        output, cache = step(module, x, cache)
        return output if x.shape[1] == 1 else output.flip(1), cache

    return replace(subject, step=faulty)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step"),
    blocked_by=("FWD206", "NAN101"),
    explained_by=("DEC111",),
    unless=("stochastic",),
)
