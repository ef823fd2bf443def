"""Functions for sampling that take one row alone, or go by another rule than their names may suggest."""

from collections import Counter

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.nsa_doctor.checks.sound_samplers import INF, Base


class OfAxisZero(Base):
    def sample_top_p(self, logits: Tensor, top_p: float) -> Tensor:
        ordered, places = torch.sort(logits, descending=False)
        removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= (1 - top_p)
        removed[-1:] = False
        return logits.masked_fill(removed.scatter(0, places, removed), -INF)


class FirstOnes(Base):
    def apply_top_p(self, logits_1d: Tensor, p: float) -> Tensor:
        ordered, places = torch.sort(logits_1d, descending=True)
        keep = F.softmax(ordered, dim=-1).cumsum(dim=-1) <= p
        keep[0] = True
        count = int(keep.sum())
        masked = torch.full_like(logits_1d, -INF)
        masked[places[:count]] = logits_1d[places[:count]]
        return masked


class Number(Base):
    """A Python number is drawn, by way of NumPy; p of one would be lost to rounding."""

    def sample_logits(self, logits: Tensor, temperature: float = 1.0, top_p: float = 0.85, top_k: int = 0) -> int:
        probs = logits.softmax(-1).numpy()
        order = np.argsort(probs)[::-1]
        sums = np.cumsum(probs[order])
        cut = float(probs[order][np.argmax(sums >= top_p)])
        probs[probs < cut] = 0
        if 0 < top_k < len(probs):
            probs[order[top_k:]] = 0
        probs = probs ** (1.0 / temperature)
        return int(np.random.default_rng().choice(len(probs), p=probs / probs.sum()))


class Searched(Base):
    def sample_top_p(self, logits: Tensor, top_p: float, min_tokens_to_keep: int = 1) -> int:
        ordered, places = logits.sort(descending=True, stable=True)
        count = int(torch.searchsorted(ordered.softmax(-1).cumsum(-1), top_p)) + 1
        kept = places[: max(count, min_tokens_to_keep)]
        return int(kept[torch.distributions.Categorical(logits=logits[kept]).sample()])


class Confident(Base):
    """Gives how likely the tokens were, and which they are."""

    def sample_tokens(
        self, logits: Tensor, temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = logits / temperature if temperature > 0 else logits
        if top_p is not None and top_p < 1:
            ordered, places = logits.sort(-1, descending=True)
            removed = F.pad(ordered.softmax(-1).cumsum(-1) > top_p, (1, -1), value=False)
            logits = logits.masked_fill(torch.zeros_like(removed).scatter(-1, places, removed), -1e30)
        if top_k is not None:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[..., -1, None], -1e30)
        probs = logits.softmax(-1)
        if temperature > 0:
            drawn = torch.distributions.Categorical(probs=probs).sample()
            return probs.gather(-1, drawn[..., None])[..., 0], drawn
        return probs.max(-1)


class Several(Base):
    def sample_top_p(self, probs: Tensor, p: float, num_samples: int) -> Tensor:
        ordered, places = torch.sort(probs, dim=-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered > p] = 0.0
        return torch.gather(places, -1, torch.multinomial(ordered, num_samples=num_samples))


class CountedPenalty(Base):
    def apply_repetition_penalty(self, logits: Tensor, recent_ids: list[int], penalty: float = 1.5) -> Tensor:
        adjusted = logits.clone()
        for token, count in Counter(recent_ids).items():
            factor = penalty**count
            adjusted[token] = adjusted[token] / factor if adjusted[token] > 0 else adjusted[token] * factor
        return adjusted


class FewerThanAsked(Base):
    """Never more than ten, whatever is asked for."""

    def top_k(self, logits: Tensor, k: int) -> Tensor:
        return logits.masked_fill(logits < logits.topk(min(k, 10), -1).values[..., -1:], -INF)


class ShareOfCount(Base):
    """The share is one of how many stay."""

    def top_p(self, scores: Tensor, p: float = 0.5) -> Tensor:
        count = max(1, round(p * scores.shape[-1]))
        return scores.masked_fill(scores < scores.topk(count, -1).values[..., -1:], -INF)


class Nuclei(Base):
    """Of cells, not of tokens."""

    def nucleus_mask(self, prob: Tensor, threshold: float = 0.5) -> Tensor:
        return prob > threshold

    def segment_nucleus(self, probs: Tensor, p: float = 0.5) -> Tensor:
        return probs * (probs > p).flip(-1)


class Handed(Base):
    """What is handed on is the floor already."""

    def filter_min_p_(self, logits: Tensor, min_p: float) -> None:
        logits.masked_fill_((logits < min_p) & (logits < logits.amax(-1, keepdim=True)), -INF)


class Unread(Base):
    """A number of another's interface that is not read."""

    def post_process_logits(self, logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
        return logits / temperature


class Activated(Base):
    """The largest ones by size go on, as in a sparse layer."""

    def topk_activation(self, scores: Tensor, k: int) -> Tensor:
        return scores * (scores.abs() >= scores.abs().topk(k, -1).values[..., -1:])

    def top_k_experts(self, logits: Tensor, k: int) -> Tensor:
        return (-logits).softmax(-1).topk(k, -1).values
