"""FWD280 repeated-places-counted-once

Detects: a write by an index that holds the same place several times, in a forward pass or a loss: `x[i] += v`,
    `index_put_` without `accumulate`, `scatter_` and `index_copy_`, where one of the values for the place stays, and
    the answer is another one with those that are lost.
Matters: torch adds nothing up there and does not say which value stays: a repeated token, edge or item counts once.
Fix: add them up, with `index_add_`, `scatter_add_` or `index_put_(..., accumulate=True)`.

Example:
    # faulty
    copied = torch.zeros_like(logits).scatter_(-1, ids, attention)
    # correct
    copied = torch.zeros_like(logits).scatter_add_(-1, ids, attention)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.every_call import first_seen_in_calls
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import counted
from nsa_doctor.probes.behaviour.lost_repeats import lost_repeats
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.subject.contract import Subject

_COMING_AGAIN = (0, 1, 0, 1, 2, 0, 1, 0, 2)  # one pair of neighbours more often than another


def run(subject: Subject) -> Iterator[Finding]:
    seen = first_seen_in_calls(subject, lost_repeats, _inputs)
    if seen is None:
        return
    asked, each = seen
    what = "adds to" if each.adds else "writes"
    yield Finding(
        message=f"{each.function} in {asked.name} {what} {counted(each.num_places, 'place')}, some of them several "
        f"times: {counted(each.num_lost, 'value')} of {each.num_places + each.num_lost} are lost, "
        "and with them the answer is another one",
        where=in_subject(each.place, asked.sp.module),
        evidence={"call": asked.name, "operation": each.function, "lost": each.num_lost, "places": each.num_places},
        repro=command_for(subject, "FWD280"),
    )


def _inputs(x: Tensor) -> Sequence[Tensor]:
    """As it is; and tokens that come again, with what followed them."""
    period = len(_COMING_AGAIN)
    tokens = [_COMING_AGAIN[place % period] for place in range(x.shape[1])]
    return (x,) if x.is_floating_point() or x.shape[1] < period else (x, x[:, tokens])


def planted(subject: Subject) -> Subject:
    def pooled(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        groups = torch.arange(output.shape[1], device=output.device) // 2
        sums = torch.zeros_like(output)
        sums[:, groups] += output
        return output + 0.1 * sums

    return replace(subject, forward=pooled)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))
