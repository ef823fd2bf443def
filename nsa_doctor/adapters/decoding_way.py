"""A way in which a plain module may decode."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.attention.reset_cache import ReadFrom

Prefill = Callable[[nn.Module, Tensor], tuple[Tensor, Any]]
Step = Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Decoding:
    """A way to decode, in words; `is_certain` where its names alone leave no doubt about what a step does.

    It `goes_on` where they leave none that a step may be given several tokens, as a forward is that takes past keys and
    values, unless it does not look at them then. Where `is_prompt_whole`, what a prompt gives has to be what one pass
    gives, at all of its tokens. Where it is not `is_named`, nothing says that what a step is given is a cache but that
    a prompt returns it, and it is no tensor or number. A step `takes_a_token` where its argument is called one. A cache
    `holds_the_past` where its name says so: a step that does not read it is at fault. What it raises `is_blamed` on the
    subject where the names of all that it is given say so. A state `is_summary` where it may
    be of whole segments, so that what follows it is only like what one pass gives. It is tried with `num_rows`, the
    fewest that the subject takes where that is not given. `counts` are numbers of a cache that count its tokens: one
    that is 0 behind a prompt is left to whoever calls the module.

    `others` are steps that a module may want in its place, given all tokens so far, each with the one at the first
    position in its place: a module that gives another output then counts positions by itself.
    """

    words: str
    prefill: Prefill
    step: Step
    is_certain: bool
    goes_on: bool = False
    is_prompt_whole: bool = False
    is_named: bool = True
    takes_a_token: bool = False
    holds_the_past: bool = False
    is_blamed: bool = False
    is_summary: bool = False
    num_rows: int | None = None
    counts: Callable[[Any], Mapping[str, int]] | None = None
    others: tuple[tuple[Step, Step | None], ...] | None = None


def read_by(step: Step, start: Callable[[nn.Module, Tensor], Any]) -> ReadFrom:
    """A prompt that is read token by token, from a first state."""

    def into(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        outputs = []
        for token in x.split(1, 1):
            output, state = step(module, token, state)
            outputs.append(output.clone())
        return torch.cat(outputs, 1), state

    return ReadFrom(start, into)
