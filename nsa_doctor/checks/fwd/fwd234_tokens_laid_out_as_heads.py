"""FWD234 tokens-laid-out-as-heads

Detects: a layer of attention that tears tokens apart where it lays them out as heads, or joins heads as if they were
tokens: equal tokens, whose mean any softmax gives, come out as other arrangements of the same numbers; or one token
changes several rows of one head's scores and none of another's.
Matters: a head then weighs pieces of channels of a part of the tokens; the shapes are right, the loss falls, and the
model stays behind for ever.
Fix: split the channels and then swap axes: `q.view(B, S, H, D).transpose(1, 2)`; and back by
`y.transpose(1, 2).reshape(B, S, H * D)`.

Example:
    # faulty
    q = q.reshape(B, H, S, D)  # of [B, S, H * D]
    # correct
    q = q.view(B, S, H, D).transpose(1, 2)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.equal_tokens import LENGTH, taken_apart
from nsa_doctor.probes.attention.layers_of_scores import Layer, layers_of_scores
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_TOKENS = (16, 25)  # neither at the ends nor at one that heads begin with


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    if not any(isinstance(part, nn.Linear) for part in sp.module.modules()):
        raise NotApplicableError("it has no linear layer that could be given equal tokens")
    if subject.max_length < LENGTH:
        raise NotApplicableError(f"it serves {subject.max_length} tokens, of {LENGTH} that are needed")
    found = list(taken_apart(sp))
    counted = [] if found else [(layer, _rows(layer)) for layer in layers_of_scores(sp, LENGTH)]
    torn = [(layer, rows[0]) for layer, rows in counted if all(map(_is_torn, rows))]
    for layer, of_first in torn[:1]:
        rows = ", ".join(map(str, of_first))
        yield Finding(
            message=f"token {_TOKENS[0]} of what {layer.path or subject.name} is given has {rows} rows of scores in "
            f"its {layer.num_maps} heads, where each should have one: channels of a token are taken for other tokens",
            where=in_subject(layer.layout, sp.module),
            evidence={"length": LENGTH, "dtype": sp.dtype, "rows": rows},
            repro=command_for(subject, "FWD234"),
        )
    for each in found[:1]:
        more = f" (so do {len(found) - 1} more)" if len(found) > 1 else ""
        yield Finding(
            message=(
                f"{LENGTH} equal tokens come to {each.path}{more} as different arrangements of the same numbers: "
                "channels of other tokens and heads are taken for those of one"
            ),
            where=in_subject(each.place, sp.module),
            evidence={"length": LENGTH, "dtype": sp.dtype, "projection": each.path},
            repro=command_for(subject, "FWD234"),
        )


def _rows(layer: Layer) -> list[list[int]]:
    """For some tokens, how many rows of each head's scores are theirs."""
    found = [layer.rows_of(token) for token in _TOKENS]
    return [[] if rows is None else rows.tolist() for rows in found]


def _is_torn(rows: list[int]) -> bool:
    """Whether the rows that the heads should have one each of lie in some of them alone."""
    return min(rows, default=1) == 0 and max(rows) > 1 and sum(rows) == len(rows)


def planted(subject: Subject) -> Subject:
    class Beside(nn.Module):
        """The subject, and attention of as many tokens whose heads are joined as tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.into, self.out = subject.build(subject.seed), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            tokens = torch.linspace(-1, 1, 16 * x.shape[1], device=x.device).view(1, x.shape[1], 16)
            heads = self.into(tokens.to(self.into.weight)).unflatten(-1, (2, 8)).transpose(1, 2)
            joined = ((heads @ heads.mT).softmax(-1) @ heads).reshape(1, x.shape[1], 16)
            return output + 0 * self.out(joined).sum().to(output.dtype)

    return replace(subject, build=lambda _seed: Beside(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))
