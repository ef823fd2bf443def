"""DEC106 batched-prefill-differs

Detects: a prompt prefilled at once that gives another output, or leaves a different KV cache, than its tokens one by
    one.
Matters: prompts are always taken in at once, so everything generated starts from a KV cache that is not the text's.
Fix: mask a batched prompt as a whole pass is masked, and put its last tokens into the cache as steps would.

Example:
    # faulty
    y = scaled_dot_product_attention(q, k, v)  # a prompt that reads its own future
    # correct
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from nsa_doctor.checks._shared.decoded import departures
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.lengths import evenly
from nsa_doctor.probes.attention.decoding import ReadByTokens, decoding_module, lengths_to_decode
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_MOST_STEPS, _FEW_PROMPTS, _ROWS = 24, 3, 3
_LONG_PROMPTS, _FEW_STEPS = (260, 515), 2


def run(subject: Subject) -> Iterator[Finding]:
    sp = decoding_module(subject)
    short, long = lengths_to_decode(subject)
    for length, rows in ((short, _ROWS), (long, 1)):
        what = "a prompt taken in at once"
        found = list(departures(sp, "DEC106", length, [length], what, rows=rows, known=[1] * length))
        if found:
            yield from found
            return
    for prompt in _prompts(subject, long):
        steps = min(_MOST_STEPS, long - prompt)
        length = prompt + steps
        what = f"decoding after a prompt of {prompt} tokens"
        found = list(departures(sp, "DEC106", length, [prompt, *[1] * steps], what, rows=_ROWS, known=[1] * length))
        if found:
            yield from found
            return
    for prompt in _long_prompts(subject, long):
        what = f"decoding after a prompt of {prompt} tokens"
        found = list(departures(sp, "DEC106", prompt + _FEW_STEPS, [prompt, *[1] * _FEW_STEPS], what))
        if found:
            yield from found
            return


def _long_prompts(subject: Subject, longest: int) -> list[int]:
    """Prompts longer than those so far, which may be taken in as several pieces."""
    is_by_tokens = isinstance(inspect.unwrap(subject.prefill), ReadByTokens) if subject.prefill is not None else False
    if subject.is_slow or subject.profile == "smoke" or is_by_tokens:
        return []
    return [prompt for prompt in _LONG_PROMPTS if longest < prompt <= subject.max_length - _FEW_STEPS]


def _prompts(subject: Subject, length: int) -> list[int]:
    """Prompts that end inside, at and just after blocks of every kind."""
    try:
        rules = rules_of(subject)
    except NotApplicableError:
        begins = (5, 1, 15, 17, 33, length // 3, length - 5)
        fitting = list(dict.fromkeys(end for end in begins if 1 <= end < length))
        return fitting if subject.profile == "full" else [*fitting[:1], *fitting[-2:]]
    ends = (rules.l - 1, rules.l, rules.l_sel, rules.l_sel + 1, length - _MOST_STEPS, length - rules.d)
    fitting = sorted({end for end in ends if 1 <= end < length})
    return fitting if subject.profile == "full" else evenly(fitting, _FEW_PROMPTS)


def planted(subject: Subject) -> Subject:
    prefill = subject.prefill
    assert prefill is not None

    def faulty(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        output, cache = prefill(module, x)
        return output if x.shape[1] == 1 else output.roll(1, dims=1), cache

    return replace(subject, prefill=faulty)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step"),
    blocked_by=("FWD206", "NAN101"),
    explained_by=("DEC111",),
    unless=("stochastic",),
)
