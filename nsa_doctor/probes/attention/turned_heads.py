"""Heads whose scores tell no distance, beside others of the same softmax that are turned by position."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.attention.score_watch import MASKED, softmaxes
from nsa_doctor.probes.attention.stationary import rotation
from nsa_doctor.probes.attention.turning_lines import turning_place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule

_FEWEST_HEADS = 2
_FLAT, _TURNED = 1e-6, 1e-3  # of the largest score: roundings, and what a rotation makes


@dataclass(frozen=True)
class Unturned:
    """Heads of `count` that score equal tokens alike at every distance, and where queries and keys are turned."""

    heads: tuple[int, ...]
    count: int
    place: Place

    @property
    def is_wrong(self) -> bool:
        """Whether the first head alone is turned, as where a head's angles meet channels that are no heads yet.

        Several, or others, may be turned on purpose.
        """
        return self.count > _FEWEST_HEADS and self.heads == tuple(range(1, self.count))

    @property
    def text(self) -> str:
        """What is seen."""
        heads = f"head{'s' * (len(self.heads) > 1)} {numbers(self.heads)} of {self.count}"
        return f"equal tokens score alike at every distance in {heads}"


def unturned_heads(sp: BuiltModule, length: int) -> Unturned | None:
    """The first softmax [..., S, S] of which some heads are turned and others are not; None where there is none.

    A module that refuses a row of equal tokens, or fails at one, shows none.
    """
    with unobserved():
        found = attempt(lambda: _unturned_heads(sp, length))
    return None if isinstance(found, Caught) else found


def _unturned_heads(sp: BuiltModule, length: int) -> Unturned | None:
    x = sp.input(1).repeat_interleave(length, dim=1)
    if not rotation(sp, x).is_seen:
        return None
    for index, each in enumerate(softmaxes(sp, x)[0]):
        if each.is_of_tokens(length) and each.is_fed_alike:
            size, bent = _swings(each.scores.flatten(0, -3))  # of one row
            flat = [head for head, swing in enumerate(size) if swing <= _FLAT]
            if flat and max(bent) > _TURNED:
                place = turning_place(sp, x, index, is_caller=True) or each.place
                return Unturned(tuple(flat), len(size), place)
    return None


def _swings(scores: Tensor) -> tuple[list[float], list[float]]:
    """For each head [H, S, S] how far scores lie from that of the own key, and from a line of distance.

    Both in units of the largest score; a bias that grows with distance lies on such a line.
    """
    rows = scores.detach().double()
    is_seen = torch.isfinite(rows) & (rows > MASKED)
    largest = torch.where(is_seen, rows.abs(), 0.0).max().clamp_min(1e-300)
    rows = torch.where(is_seen, rows, torch.nan)
    above = (rows - rows.diagonal(dim1=1, dim2=2)[..., None]).nan_to_num().abs().amax((1, 2))
    bent = rows.diff(n=2, dim=-1).tril(-2).nan_to_num().abs().amax((1, 2))
    return (above / largest).tolist(), (bent / largest).tolist()
