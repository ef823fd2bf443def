"""DEC103 unwritten-memory-read

Detects: decoding that changes when the part of the cache that holds no token is overwritten with large numbers.
Matters: results depend on what the memory held before: other requests, other runs, or NaN.
Fix: read up to the number of tokens written, and write a token's key and value before its query reads them.

Example:
    # faulty
    y = attend(q, cache.k, cache.v)  # all that is allocated, written or not
    # correct
    y = attend(q, cache.k[:, : cache.length], cache.v[:, : cache.length])
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.decoding import decode, decoding_module, guilty_module, lengths_to_decode
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.compare import departure
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_LARGE = 3e3  # within every dtype, and far from all ordinary values


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = decoding_module(subject)
    short, long = lengths_to_decode(subject)
    tail = min(long - 1, 24)
    short = short if subject.profile == "full" else min(short, 80)
    for length, sizes in ((short, [1] * short), (long, [long - tail, *[1] * tail])):
        found = list(_changed(sp, length, sizes))
        yield from found
        if found:
            return


def _changed(sp: BuiltModule, length: int, sizes: list[int]) -> Iterator[Finding | Note]:
    fill, x = sp.subject.fill_unwritten, sp.input(length)
    assert fill is not None
    expected = decode(sp, x, sizes, lambda cache: fill(cache, 0.0))
    floor = torch.zeros(expected.output.shape[:2], device=expected.output.device)  # the very same arithmetic
    for value in (_LARGE, torch.nan):
        result = decode(sp, x, sizes, lambda cache, value=value: fill(cache, value))
        found = departure(result.output, expected.output, floor)
        if found is None:
            continue
        token = result.tokens[found.first_token]
        if value != value:  # nothing but 0 · NaN can be at work: large numbers changed nothing
            yield Note(message=f"NaN in memory of the cache that holds no token reaches the output at token {token}")
            return
        place = guilty_module(_filling(sp, value), x, sizes, token)
        yield Finding(
            message=f"{value:g} in memory of the cache that holds no token changes {found.num_tokens} of "
            f"{found.num_compared} tokens, the first {token}, by up to {found.error:.2g}, at S={length}",
            where=place,
            evidence={"length": length, "token": token, "error": found.error, "value": value},
            repro=command_for(sp.subject, "DEC103"),
        )
        return
    if not bool(isfinite(expected.output).all()):
        yield Note(message=f"decoding gives values that are not finite at S={length}")


def _filling(sp: BuiltModule, value: float) -> BuiltModule:
    """The module, its step preceded by such a fill."""
    fill, step = sp.subject.fill_unwritten, sp.subject.step
    assert fill is not None
    assert step is not None

    def filled(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        fill(cache, value)
        return step(module, x, cache)

    return replace(sp, subject=replace(sp.subject, step=filled))


def planted(subject: Subject) -> Subject:
    step, fill = subject.step, subject.fill_unwritten
    assert step is not None
    assert fill is not None
    held: dict[int, float] = {}

    def noting(cache: Any, value: float) -> None:
        held[id(cache)] = value
        fill(cache, value)

    def faulty(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        output, after = step(module, x, cache)
        return output + 1e-6 * held.get(id(cache), 0.0), after

    return replace(subject, step=faulty, fill_unwritten=noting)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("prefill", "step", "fill_unwritten"), blocked_by=("FWD206",)
)
