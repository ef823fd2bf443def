"""FWD249 loop-never-runs

Detects: a loop over numbers that count the wrong way, as `range(n, 0)` or `range(0, n, -1)` with a positive n, which
building the subject or a pass comes to, and never goes through.
Matters: what it was to do is left out without a word: layers stay unconnected, tokens unread.
Fix: give a step of -1, or the two ends in their order.

Example:
    # faulty
    for layer in range(num_layers // 2, 0):
        self.skips[num_layers - layer] = layer
    # correct
    for layer in range(num_layers // 2, 0, -1):
        self.skips[num_layers - layer] = layer
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.empty_loops import counted_loops, followed
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_LENGTHS = 19, 67
_OWN = 3  # the rank of a file of the subject's own


def run(subject: Subject) -> Iterator[Finding]:
    frames, module = FrameFilter(subject.packages), built(subject).module
    loops = [each for each in counted_loops(module) if frames.rank(each.place.file) == _OWN]
    if not loops:
        return
    with followed(loops), torch.no_grad(), unobserved():
        for mode in ("train", "eval"):
            sp = built(subject, mode=mode)
            for length in _LENGTHS:
                attempt(lambda sp=sp, length=length: sp(sp.input(min(length, subject.max_length), batch=2)))
    for loop in loops:
        if loop.is_empty:
            way = "downwards from 0" if loop.is_downward else "upwards to 0 or less"
            yield Finding(
                message=f"{loop.numbers} counts {way} with {loop.ends[0]}: the loop over it never runs",
                where=in_subject(loop.place, module),
                evidence={"numbers": loop.numbers},
                repro=command_for(subject, "FWD249"),
            )


def planted(subject: Subject) -> Subject:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)

        def forward(self, x: Tensor) -> Tensor:
            for turn in range(x.shape[1] - 1, -1):
                x = x + turn
            output: Tensor = subject.forward(self.inner, x)
            return output

    return replace(subject, build=lambda _seed: Stack(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), priority=458)
