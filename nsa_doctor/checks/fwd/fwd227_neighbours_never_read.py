"""FWD227 neighbours-never-read

Detects: tokens that read what is near and all that is far, and skip a block between, whatever the input is; a
    sequence in two halves that never read each other, though neighbours at that place do in a longer one; tokens many
    of which read themselves, and many others alone, as where outputs are laid out in another order than they came in;
    and a module that projects queries, keys and values and in which no token reads another.
Matters: what stands in the gap reaches those tokens by no way, and the loss still falls.
Fix: count the levels, or the shares, by which a sequence is divided: one of them is left out. Where blocks were taken
    apart, put them together by the same axes: `reshape` keeps the order of memory.

Example:
    # faulty
    levels = levels[1:]  # blocks next to one another meet at the level that is left out
    # correct
    levels = levels
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.attention.read_tokens import readers
from nsa_doctor.probes.attention.token_gaps import halves, projects_all_three, skipped_blocks, strangers
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.nominal_time import nominal_seconds
from nsa_doctor.subject.contract import Subject

_LENGTH, _MOST_SECONDS = 64, 0.005  # of one call of a row


def run(subject: Subject) -> Iterator[Finding]:
    if subject.geometry is not None:
        raise NotApplicableError("its geometry says what it reads")
    if subject.is_slow or subject.max_length < _LENGTH:
        raise NotApplicableError(f"calls take too long, or it serves less than {_LENGTH} tokens")
    sp = comparable_module(subject)
    x = sp.input(_LENGTH)
    with torch.no_grad():
        if nominal_seconds(lambda: sp(x)) > _MOST_SECONDS:
            raise NotApplicableError("calls take too long to ask token by token")
    read = readers(sp, _LENGTH, range(_LENGTH))
    message, place = _gap(sp, read), None
    attends = None if message else projects_all_three(sp, x)
    if attends is not None and torch.equal(read, torch.eye(_LENGTH, dtype=torch.bool)):
        message = f"no token reads another at S={_LENGTH}, whatever the input, though queries, keys and values are made"
        place = definition_place(attends)
    if message:
        yield Finding(
            message=message,
            where=in_subject(place or origin(subject, sp.module, lambda: sp(x)), sp.module),
            evidence={"length": _LENGTH, "dtype": sp.dtype},
            repro=command_for(subject, "FWD227"),
        )


def _gap(sp: BuiltModule, read: Tensor) -> str:
    """What is never read between or beside what is; nothing where there is no such gap."""
    if gap := skipped_blocks(read):
        return (
            f"{gap.num_rows} of {_LENGTH} tokens read nearer and all farther ones and skip {gap.size} between at "
            f"S={_LENGTH}, whatever the input: token {gap.token} reads none of {gap.first} to {gap.last}"
        )
    if (at := halves(read)) is not None and sp.subject.max_length >= 2 * _LENGTH:
        longer = readers(sp, 2 * _LENGTH, [at - 1, at])
        if bool(longer[at, 0] | longer[at - 1, 1]):
            return (
                f"tokens before {at} and from it on never read each other at S={_LENGTH}; "
                f"at S={2 * _LENGTH}, tokens {at - 1} and {at} do"
            )
    if apart := strangers(read):
        return (
            f"{len(apart)} of {_LENGTH} tokens read others and never themselves, as the rest do, at S={_LENGTH}, "
            f"whatever the input: {numbers(apart)}"
        )
    return ""


def planted(subject: Subject) -> Subject:
    def skips_the_block_before(module: nn.Module, x: Tensor) -> Tensor:
        block = torch.arange(x.shape[1], device=x.device) // 8
        apart = block[:, None] - block[None]
        seen = ((apart >= 0) & (apart != 1)).to(x.dtype)
        return torch.einsum("ij,bjd->bid", seen / seen.sum(-1, keepdim=True), x)

    return replace(subject, geometry=None, forward=skips_the_block_before)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD203", "FWD206", "NAN101"))
