"""Made-up logits of a few rows, which no two ways to count tell apart by chance, and what is due of them."""

import torch
from torch import Tensor

from nsa_doctor.probes.language.sampling_names import NUM_TOKENS, Given, Kind

NUM_ROWS = 24
VALUES: dict[Kind, tuple[float, ...]] = {
    "top_p": (0.9, 0.5, 0.3, 0.75),
    "top_k": (5, 1, 20),
    "share": (0.9, 0.5, 0.7),
    "min_p": (0.1, 0.3, 0.05),
    "temperature": (0.5, 2.0),
    "penalty": (1.5, 1 / 1.5),
}
SPREADS = (1.0, 0.3, 2.0, 4.0, 1.0)  # the last ones have a peak beside
_PEAK, _CLEAR, _TRIES = 9.0, 2e-3, 128


def rows_of_logits(seed: int) -> Tensor:
    """[rows, tokens]: from nearly flat to peaked, in no order, of both signs; no share is next to one of `VALUES`."""
    generator = torch.Generator().manual_seed(seed + 7)
    found: list[list[Tensor]] = [[] for _ in SPREADS]
    for number, rows in enumerate(found):
        while len(rows) * len(SPREADS) + number < NUM_ROWS:
            tried = _rows(number, generator)
            rows += tried[_are_clear(tried)].unbind()
    return torch.stack([found[row % len(SPREADS)][row // len(SPREADS)] for row in range(NUM_ROWS)]).float()


def _rows(number: int, generator: torch.Generator) -> Tensor:
    gaps = 0.2 + torch.rand(_TRIES, NUM_TOKENS, generator=generator, dtype=torch.float64)
    values = gaps.cumsum(-1)
    values = (values - values.mean(-1, keepdim=True)) / values.std(-1, keepdim=True) * SPREADS[number]
    if number == len(SPREADS) - 1:
        values[:, -1] += _PEAK
    return values.gather(-1, torch.rand(values.shape, generator=generator).argsort(-1))


def _are_clear(rows: Tensor) -> Tensor:
    """[rows], whether sums of the likeliest, and shares of the likeliest one, are away from what is asked for."""
    probs = rows.softmax(-1).sort(-1, descending=True).values
    edges = torch.tensor([each for p in VALUES["top_p"] for each in (p, 1 - p)], dtype=torch.float64)
    parts = torch.tensor(VALUES["min_p"], dtype=torch.float64)
    of_sums = (probs.cumsum(-1)[..., None] - edges).abs() > _CLEAR
    of_parts = ((probs / probs[:, :1])[..., None] - parts).abs() > _CLEAR * parts
    return of_sums.flatten(1).all(-1) & of_parts.flatten(1).all(-1)


def as_given(logits: Tensor, given: Given) -> Tensor:
    """The same as logits, as probabilities or as their logarithms."""
    if given == "probs":
        return logits.softmax(-1)
    return logits.log_softmax(-1) if given == "log_probs" else logits.clone()


def num_due(logits: Tensor, kind: Kind, value: float) -> Tensor:
    """[rows], how many tokens a number of this kind keeps of each row: those up to the one with which p is reached."""
    probs = logits.double().softmax(-1).sort(-1, descending=True).values
    if kind == "top_p":
        return (probs.cumsum(-1) < value).sum(-1) + 1
    if kind == "min_p":
        return (probs >= value * probs[:, :1]).sum(-1)
    return torch.full((len(logits),), int(value))
