"""FWD244 earlier-tokens-never-read

Detects: a subject that decodes with a state or a cache, in whose outputs no earlier token counts: in one pass over all
    tokens each is answered by itself alone.
Matters: a scan whose decay is zero, keys that are never read: it trains like a layer without memory, and nothing
    raises; decoding that forgets likewise agrees with it.
Fix: follow the state from one token to the next: a decay that is padded with zeros, a mask that shows each query its
    own key alone, a branch that is multiplied by nothing.

Example:
    # faulty
    decays = F.pad(decay[None], (0, 0, 0, S - 1))  # zeros for every token but the first
    # correct
    decays = decay.expand(S, -1)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import odd_lengths
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.attention.decoding import decode, decoding_module
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.state_fields import fields_of
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.probes.numerics.divergence import recording_of
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    lengths = [length for length in odd_lengths(subject) if length > 1]
    for mode in subject.modes:
        sp = comparable_module(subject, mode=mode)
        if any(_reads_the_past(sp, length) for length in lengths):
            return
    sp = decoding_module(subject)
    if not lengths or not _keeps_tokens(sp, lengths[0]):
        return
    yield Finding(
        message=f"no output depends on an earlier token at S={numbers(set(lengths))}, though it decodes with a state",
        where=_maker(sp, lengths[0]),
        evidence={"length": max(lengths)},
        repro=command_for(subject, "FWD244"),
    )


def _reads_the_past(sp: BuiltModule, length: int) -> bool:
    """Whether other tokens up to one of several change one behind it: at a single one a block may begin."""
    x, other = sp.input(length), sp.input(length, seed=sp.subject.seed + 1)
    base = baseline(sp, x)
    for cut in dict.fromkeys(min(max(1, at), length - 1) for at in (length // 2, length // 2 + 1, length // 3, length)):
        with torch.no_grad():
            changed = sp(torch.cat((other[:, :cut], x[:, cut:]), 1))
        if base.departure(changed[:, cut:], tokens=slice(cut, None)) is not None:
            return True
    return False


def _keeps_tokens(sp: BuiltModule, length: int) -> bool:
    """Whether a tensor in what it hands out to go on with is another after other tokens."""
    one, other = (
        {
            path: field.value.clone()
            for path, field in fields_of(cache, "cache").items()
            if isinstance(field.value, Tensor)
        }
        for cache in (decode(sp, sp.input(length, seed=sp.subject.seed + seed), [length]).cache for seed in range(2))
    )
    return any(not torch.equal(one[path], other[path]) for path in one.keys() & other.keys())


def _maker(sp: BuiltModule, length: int) -> Place:
    """The line that makes the output."""
    recording = recording_of(sp, lambda: sp(sp.input(length)))
    made = recording.output_maker
    place = recording.operations[made].place if made >= 0 else Place()
    return place if place.file else definition_place(sp.module)


def planted(subject: Subject) -> Subject:
    def each_by_itself(module: nn.Module, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        output = subject.forward(module, x.flatten(0, 1).unsqueeze(1))
        return output.reshape(batch, length, *output.shape[2:])

    return replace(subject, forward=each_by_itself)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step"),
    blocked_by=("FWD101", "FWD206", "NAN101"),
    unless=("stochastic",),
    priority=459,
)
