"""FWD260 scores-of-another-query

Detects: attention in whose first layer the scores of a query against a part of the keys change with a token that is
neither that query nor one of those keys: they are another query's, as of relative positions that are shifted by a
reshape, which fits keys before a query alone.
Matters: what a token reads behind itself is decided by its neighbour; the model trains all the same.
Fix: score 2 S - 1 distances, from S - 1 down to -(S - 1), before the shift, or gather each score by its distance.

Example:
    # faulty
    scores = q @ k.mT + shift(q @ positions[:S].mT)  # of a bidirectional encoder
    # correct
    scores = q @ k.mT + shift(q @ positions[: 2 * S - 1].mT)[..., :S]
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
from nsa_doctor.probes.attention.score_watch import softmaxes
from nsa_doctor.probes.attention.third_tokens import ThirdToken, third_token
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _SEEDS = 23, 2


def run(subject: Subject) -> Iterator[Finding]:
    length = min(_LENGTH, subject.max_length)
    if length < _LENGTH:
        raise NotApplicableError(f"it serves less than {_LENGTH} tokens")
    sp = comparable_module(subject)
    if not any(each.is_of_tokens(length) for each in softmaxes(sp, sp.input(length))[0]):
        raise NotApplicableError("no softmax was seen over all tokens for each of them")
    tokens = (length // 2, length // 3)
    found = [_seen(sp, length, token) for token in tokens]
    if all(each is not None for each in found) and (first := found[0]) is not None:
        yield Finding(
            message=(
                f"another token {first.token} changes the scores of token {first.query} against {len(first.keys)} "
                f"others ({numbers(set(first.keys))}) at S={length}, and not those against the rest"
            ),
            where=in_subject(first.place, sp.module),
            evidence={"length": length, "token": first.token, "query": first.query},
            repro=command_for(subject, "FWD260"),
        )


def _seen(sp: BuiltModule, length: int, token: int) -> ThirdToken | None:
    """What is seen with every input."""
    every = [third_token(sp, sp.input(length, seed=sp.subject.seed + seed), token) for seed in range(_SEEDS)]
    return every[0] if all(every) else None


def planted(subject: Subject) -> Subject:
    def shifts_positions(module: nn.Module, x: Tensor) -> Tensor:
        tokens = x.double()[..., None] / subject.width if x.dim() < 3 else x
        length = tokens.shape[1]
        angles = torch.arange(length, device=x.device)[:, None] / torch.arange(1, tokens.shape[-1] + 1).to(x.device)
        scores = nn.functional.pad(tokens @ angles.cos().to(tokens).T, (1, 0))
        moved = scores.view(len(x), length + 1, length)[:, 1:].reshape(len(x), length, length)
        read = (tokens @ tokens.mT + moved).softmax(-1) @ tokens
        output: Tensor = subject.forward(module, x)
        return output + read.mean(-1, keepdim=True).to(output)

    return replace(subject, forward=shifts_positions)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "FWD206", "NAN101"))
