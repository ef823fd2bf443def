"""Functions that filter logits or draw tokens as they say, in the forms in which they are published."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INF = float("inf")


class Base(nn.Module):
    """A layer beside what it samples with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        return self.layer(x)


class Filtering(Base):
    @staticmethod
    def top_k_top_p_filtering(logits: Tensor, top_k: int = 0, top_p: float = 1.0, filter_value: float = -INF) -> Tensor:
        if top_k > 0:
            logits[logits < torch.topk(logits, min(top_k, logits.size(-1)))[0][..., -1, None]] = filter_value
        if top_p < 1.0:
            sorted_logits, sorted_indices = torch.sort(logits, descending=True)
            cumulative = F.softmax(sorted_logits, dim=-1).cumsum(dim=-1)
            removed = cumulative > top_p
            removed[..., 1:] = removed[..., :-1].clone()
            removed[..., 0] = 0
            logits[removed.scatter(1, sorted_indices, removed)] = filter_value
        return logits


class OneRow(Base):
    def top_k_top_p_filtering(
        self, logits: Tensor, top_k: int = 0, top_p: float = 0.0, filter_value: float = -INF
    ) -> Tensor:
        assert logits.dim() == 1
        if top_k > 0:
            logits[logits < torch.topk(logits, top_k)[0][-1]] = filter_value
        if top_p > 0.0:
            sorted_logits, sorted_indices = torch.sort(logits, descending=True)
            removed = sorted_logits.softmax(-1).cumsum(-1) > top_p
            removed[1:] = removed[:-1].clone()
            removed[0] = False
            logits[sorted_indices[removed]] = filter_value
        return logits


class LessProbs(Base):
    def sample_top_p(self, probs: Tensor, p: float) -> Tensor:
        ordered, places = torch.sort(probs, dim=-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered > p] = 0.0
        ordered.div_(ordered.sum(dim=-1, keepdim=True))
        return torch.gather(places, -1, torch.multinomial(ordered, num_samples=1))


class Padded(Base):
    def top_p(self, logits: Tensor, thres: float = 0.9) -> Tensor:
        ordered, places = torch.sort(logits, descending=True)
        removed = F.pad(ordered.softmax(-1).cumsum(-1) > thres, (1, -1), value=False)
        ordered[removed] = -INF
        return ordered.scatter(-1, places, ordered)


class Rising(Base):
    def top_p(self, scores: Tensor, top_p: float = 0.9, min_tokens_to_keep: int = 1) -> Tensor:
        ordered, places = torch.sort(scores, descending=False)
        removed = ordered.softmax(-1).cumsum(-1) <= (1 - top_p)
        removed[..., -min_tokens_to_keep:] = 0
        return scores.masked_fill(removed.scatter(1, places, removed), -INF)


class DropsTheLast(Base):
    """The token with which p is passed is dropped, and the likeliest never."""

    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        removed = ordered.softmax(-1).cumsum(-1) > p
        removed[..., 0] = False
        return logits.masked_fill(torch.zeros_like(removed).scatter(-1, places, removed), -1e4)


class Inverse(Base):
    def nucleus_filter(self, logits: Tensor, threshold: float = 0.95) -> Tensor:
        places = logits.argsort(-1, descending=True)
        probs = logits.softmax(-1).gather(-1, places)
        removed = (probs.cumsum(-1) - probs) >= threshold
        back = places.argsort(-1)
        return torch.where(removed.gather(-1, back), torch.finfo(logits.dtype).min, logits)


class Cut(Base):
    def top_p(self, logits: Tensor, p: float) -> Tensor:
        ordered = logits.softmax(-1).sort(-1, descending=True).values
        last = (ordered.cumsum(-1) < p).sum(-1, keepdim=True)
        return logits.masked_fill(logits.softmax(-1) < ordered.gather(-1, last), -INF)


class OfProbs(Base):
    def top_p(self, probs: Tensor, p: float = 0.9) -> Tensor:
        ordered, places = probs.sort(-1, descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered > p, 0)
        probs = torch.zeros_like(probs).scatter(-1, places, ordered)
        return probs / probs.sum(-1, keepdim=True)


class SortedAnswer(Base):
    def top_p(self, probs: Tensor, p: float = 0.9) -> tuple[Tensor, Tensor]:
        ordered, places = probs.sort(-1, descending=True)
        return ordered.masked_fill(ordered.cumsum(-1) - ordered > p, 0), places


class Scores(Base):
    """Given probabilities, by a name that does not say so."""

    def top_p(self, scores: Tensor, p: float = 0.9) -> Tensor:
        ordered, places = scores.sort(-1, descending=True)
        removed = ordered.cumsum(-1) - ordered > p
        return scores.masked_fill(removed.scatter(-1, places, removed), 0)


class Mask(Base):
    def top_p_mask(self, logits: Tensor, p: float) -> Tensor:
        ordered, places = logits.softmax(-1).sort(-1, descending=True)
        removed = ordered.cumsum(-1) - ordered > p
        return ~removed.scatter(-1, places, removed)


class Turned(Base):
    """The number is what is removed, as its default says."""

    def top_p(self, logits: Tensor, thres: float = 0.1) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        removed = F.pad(ordered.softmax(-1).cumsum(-1) > 1 - thres, (1, -1), value=False)
        return logits.masked_fill(removed.scatter(-1, places, removed), -INF)


class TopK(Base):
    def top_k(self, logits: Tensor, k: int) -> Tensor:
        return torch.where(logits < logits.topk(k, -1).values[..., -1:], -INF, logits)


class Kth(Base):
    def top_k_filter(self, logits: Tensor, top_k: int = 50) -> Tensor:
        least = logits.kthvalue(logits.shape[-1] - top_k + 1, dim=-1, keepdim=True).values
        return logits.masked_fill(logits < least, -1e10)


class Share(Base):
    def top_k(self, logits: Tensor, thres: float = 0.9) -> Tensor:
        values, places = logits.topk(math.ceil((1 - thres) * logits.shape[-1]), -1)
        return torch.full_like(logits, -INF).scatter_(1, places, values)


class ShareOrCount(Base):
    def top_k(self, logits: Tensor, frac_num_tokens: float = 0.1, k: int | None = None) -> Tensor:
        k = math.ceil(frac_num_tokens * logits.shape[-1]) if k is None else k
        values, places = logits.topk(min(k, logits.shape[-1]), -1)
        return torch.full_like(logits, -INF).scatter_(-1, places, values)


class OfThree(Base):
    def top_k(self, logits: Tensor, thres: float = 0.9) -> Tensor:
        values, places = logits.topk(math.ceil((1 - thres) * logits.shape[-1]), -1)
        return torch.full_like(logits, -INF).scatter_(2, places, values)


class InPlace(Base):
    def top_k_(self, logits: Tensor, k: int) -> None:
        logits[logits < logits.topk(k).values[:, [-1]]] = -INF


class MinP(Base):
    def min_p(self, logits: Tensor, min_p: float = 0.1) -> Tensor:
        probs = logits.softmax(-1)
        return torch.where(probs < min_p * probs.amax(-1, keepdim=True), -INF, logits)


class MinPOfLogs(Base):
    def min_p_filter(self, logits: Tensor, p: float = 0.1) -> Tensor:
        return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -INF)


class Floor(Base):
    """A floor for the probability of every token, of which the likeliest stays."""

    def filter_min_p(self, logits: Tensor, min_p: float) -> Tensor:
        probs = logits.softmax(-1)
        return logits.masked_fill((probs < min_p) & (probs < probs.amax(-1, keepdim=True)), -INF)


class Sample(Base):
    """Of the newest token of all that are given."""

    def sample(self, logits: Tensor, temperature: float = 1.0, top_k: int | None = None) -> tuple[Tensor, Tensor]:
        logits = logits[:, -1] / max(temperature, 1e-5)
        if top_k is not None:
            least = logits.topk(min(top_k, logits.size(-1))).values[..., -1, None]
            logits = torch.where(logits < least, -INF, logits)
        probs = logits.softmax(-1)
        noise = torch.empty_like(probs).exponential_(1)
        return (probs / noise).argmax(-1, keepdim=True).to(torch.int64), probs


class SampleLogits(Base):
    def sample_logits(
        self, logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, greedy: bool = False
    ) -> Tensor:
        logits = logits / temperature
        if greedy:
            return logits.argmax(-1)
        logits = Filtering.top_k_top_p_filtering(logits.clone(), top_k=top_k, top_p=top_p)
        return logits.softmax(-1).multinomial(1).squeeze(-1)


class Gumbel(Base):
    def gumbel_sample(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        noise = -(-torch.rand_like(logits).clamp(1e-9).log()).log()
        return (logits / max(temperature, 1e-10) + noise).argmax(-1)


class Temperature(Base):
    def apply_temperature(self, logits: Tensor, temperature: float) -> Tensor:
        return logits / temperature

    def temperature_of_probs(self, probs: Tensor, temperature: float) -> Tensor:
        return (probs.log() / temperature).softmax(-1)


class Scaled(Base):
    """By the exponential of what is called a temperature, as a loss of pairs has it."""

    def scale_by_temperature(self, logits: Tensor, temperature: float) -> Tensor:
        return logits * math.exp(temperature)


class Penalty(Base):
    def apply_repetition_penalty(self, logits: Tensor, input_ids: Tensor, penalty: float = 1.2) -> Tensor:
        score = logits.gather(1, input_ids)
        score = torch.where(score < 0, score * penalty, score / penalty)
        return logits.scatter(1, input_ids, score)


class PenaltyByRow(Base):
    def repetition_penalty_(self, logits: Tensor, prev_output_tokens: Tensor, repetition_penalty: float) -> None:
        for row, ids in zip(logits, prev_output_tokens.tolist(), strict=True):
            for token in set(ids):
                row[token] = row[token] * repetition_penalty if row[token] < 0 else row[token] / repetition_penalty


class Subtracted(Base):
    def repetition_penalty(self, logits: Tensor, ids: Tensor, penalty: float = 1.0) -> Tensor:
        return logits - penalty * F.one_hot(ids, logits.shape[-1]).sum(1)


class OfExperts(Base):
    """What is no vocabulary: a place is left out where an expert is full."""

    def top_k_gating(self, logits: Tensor, k: int) -> Tensor:
        chosen = logits >= logits.topk(k, -1).values[..., -1:]
        return logits.softmax(-1) * (chosen & (chosen.int().cumsum(0) <= 3))

    def topk_accuracy(self, logits: Tensor, targets: Tensor, k: int = 5) -> Tensor:
        return (logits.topk(k, -1).indices == targets[:, None]).any(-1).float().mean()

    def topk(self, scores: Tensor, k: int) -> Any:
        return scores.topk(k, -1)


class Noisy(Base):
    def top_k(self, logits: Tensor, k: int) -> Tensor:
        noisy = logits + torch.rand_like(logits)
        return logits.masked_fill(noisy < noisy.topk(k, -1).values[..., -1:], -INF)


class Typical(Base):
    """Neither by rank nor by number, and called otherwise."""

    def typical_p(self, logits: Tensor, p: float = 0.9) -> Tensor:
        logs = logits.log_softmax(-1)
        places = (-logs - (-(logs.exp() * logs).sum(-1, keepdim=True))).abs().argsort(-1)
        probs = logs.exp().gather(-1, places)
        removed = probs.cumsum(-1) - probs > p
        return logits.masked_fill(removed.scatter(-1, places, removed), -INF)
