"""DEC105 cache-grows

Detects: a cache that takes more than twice the memory of what it has to keep, or grows faster than its tokens do.
Matters: the window and the tokens not yet compressed are bounded; a cache that keeps all of them ends in out of memory.
Fix: drop what has left the window, free what was outgrown, and double memory in place of adding to it at each step.

Example:
    # faulty
    cache.k = torch.cat([cache.k, k], dim=1)  # in a sliding branch: keys that have left the window are kept
    # correct
    cache.k = torch.cat([cache.k, k], dim=1)[:, -window:].clone()  # a slice by itself keeps all memory
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.decoding import decode, decoding_module
from nsa_doctor.probes.attention.reach import anatomy
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import rules_of

_TOKENS, _MOST_TOKENS, _PARTS = 512, 4096, 64
_DOUBLING = 2  # memory that doubles when it is full is at most half empty


def run(subject: Subject) -> Iterator[Finding]:
    sp = decoding_module(subject)
    num_tokens = _num_tokens(subject)
    size = max(1, num_tokens // _PARTS)
    sizes = [1] + [size] * (num_tokens // size)
    held: list[int] = []
    cache_bytes = subject.cache_bytes
    assert cache_bytes is not None
    decode(sp, sp.input(sum(sizes)), sizes, lambda cache: held.append(int(cache_bytes(cache))))
    tokens = [1 + size * index for index in range(len(held))]
    for count, number, due in zip(tokens, held, _due(sp, tokens, held), strict=True):
        if not number <= due:
            yield Finding(
                message=f"the cache holds {number} bytes after {count} tokens, and {due} would do with memory to spare "
                f"({held[0]} bytes after the first token)",
                where=_place(sp),
                evidence={"tokens": count, "bytes": number, "due": due},
                repro=command_for(subject, "DEC105"),
            )
            return


def _num_tokens(subject: Subject) -> int:
    """Enough to outgrow every window several times."""
    try:
        return min(6 * rules_of(subject).w + 256, _MOST_TOKENS)
    except NotApplicableError:
        return min(_TOKENS, subject.max_length - 1)


def _due(sp: BuiltModule, tokens: list[int], held: list[int]) -> list[int]:
    """The most a cache may hold: twice what has to be kept, or twice in proportion to a quarter of the tokens."""
    try:
        rules = rules_of(sp.subject)
        with torch.no_grad():
            inner = anatomy(sp, sp.input(2 * rules.l))
    except NotApplicableError:
        middle = max(1, len(tokens) // 4)
        return [max(held[: middle + 1]) * _DOUBLING * max(1, -(-count // tokens[middle])) for count in tokens]

    def per_token(name: str) -> int:
        return sum(inner[f"{kind}_{name}"][0, 0].numel() * inner["q"].element_size() for kind in "kv")

    kept = [
        count * per_token("sel")
        + (rules.num_compressed(count) + min(rules.l, count)) * per_token("cmp")
        + min(rules.w, count) * per_token("win")
        for count in tokens
    ]
    return [max(held[0], _DOUBLING * number) for number in kept]


def _place(sp: BuiltModule) -> Any:
    place = definition_place(sp.module)
    cache_bytes = sp.subject.cache_bytes
    code = getattr(cache_bytes, "__code__", None)
    return place if code is None else replace(place, file=code.co_filename, line=code.co_firstlineno)


def planted(subject: Subject) -> Subject:
    cache_bytes = subject.cache_bytes
    assert cache_bytes is not None
    calls: list[int] = []

    def faulty(cache: Any) -> int:
        calls.append(1)
        return cache_bytes(cache) * (1 + len(calls) // 8)

    return replace(subject, cache_bytes=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("prefill", "step", "cache_bytes"))
