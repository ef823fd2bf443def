"""Functions that filter logits or draw tokens, and keep others than they say; the line that decides is marked."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.nsa_doctor.checks.sound_samplers import INF, Base


class Turned(Base):
    def top_p(self, logits: Tensor, thres: float = 0.9) -> Tensor:
        ordered, places = torch.sort(logits, descending=True)
        removed = ordered.softmax(-1).cumsum(-1) > (1 - thres)  # here
        removed[:, 1:] = removed[:, :-1].clone()
        removed[:, 0] = 0
        ordered[removed] = -INF
        return ordered.scatter(1, places, ordered)


class Unsorted(Base):
    """The mask of sorted places is used as it is."""

    def nucleus(self, logits: Tensor, p: float = 0.9) -> Tensor:
        ordered = logits.sort(-1, descending=True).values
        removed = F.pad(ordered.softmax(-1).cumsum(-1) > p, (1, -1), value=False)  # here
        return logits.masked_fill(removed, -INF)


class Gathered(Base):
    def top_p(self, logits: Tensor, p: float) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        probs = ordered.softmax(-1)
        removed = probs.cumsum(-1) - probs > p  # here
        return logits.masked_fill(removed.gather(-1, places), -INF)


class DropsAll(Base):
    def top_p(self, logits: Tensor, p: float) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        removed = ordered.softmax(-1).cumsum(-1) > p  # here
        return logits.masked_fill(removed.scatter(-1, places, removed), -INF)


class SumUnsorted(Base):
    def top_p(self, logits: Tensor, p: float) -> Tensor:
        probs = logits.softmax(-1)
        return logits.masked_fill(probs.cumsum(-1) - probs > p, -INF)  # here


class OverRows(Base):
    """What is shifted are rows."""

    def top_p(self, logits: Tensor, p: float) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        removed = ordered.softmax(-1).cumsum(-1) > p  # here
        removed[1:] = removed[:-1].clone()
        removed[0] = False
        return logits.masked_fill(removed.scatter(-1, places, removed), -INF)


class FirstRow(Base):
    def top_p(self, logits: Tensor, top_p: float) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        removed = ordered.softmax(-1).cumsum(-1) > top_p  # here
        removed[..., 1:] = removed[..., :-1].clone()
        removed[..., 0] = False
        logits[:, places[0][removed[0]]] = -INF
        return logits


class Rising(Base):
    def top_p(self, logits: Tensor, p: float) -> Tensor:
        ordered, places = logits.sort(-1)
        probs = ordered.softmax(-1)
        removed = probs.cumsum(-1) - probs > p  # here
        return logits.masked_fill(removed.scatter(-1, places, removed), -INF)


class Smallest(Base):
    def top_k(self, logits: Tensor, k: int) -> Tensor:
        return logits.masked_fill(logits < logits.kthvalue(k, -1, keepdim=True).values, -INF)  # here


class OneMore(Base):
    def top_k(self, logits: Tensor, k: int) -> Tensor:
        least = logits.topk(k + 1, -1).values[..., -1:]  # here
        return logits.masked_fill(logits < least, -INF)


class OneLess(Base):
    def top_k_top_p(self, logits: Tensor, top_k: int = 0, top_p: float = 1.0) -> Tensor:
        if top_k > 0:
            logits = logits.masked_fill(logits <= logits.topk(top_k, -1).values[..., -1:], -INF)  # here
        return logits


class OtherAxis(Base):
    def top_k(self, logits: Tensor, k: int) -> Tensor:
        least = logits.topk(k, dim=0).values[-1:]  # here
        return logits.masked_fill(logits < least, -INF)


class OneThreshold(Base):
    def filter_logits(self, logits: Tensor, top_k: int = 50) -> Tensor:
        least = logits.topk(top_k).values[0, -1]  # here
        return torch.where(logits < least, -INF, logits)


class OfTheBatch(Base):
    def min_p(self, logits: Tensor, min_p: float = 0.1) -> Tensor:
        probs = logits.softmax(-1)
        return logits.masked_fill(probs < min_p * probs.max(), -INF)  # here


class Draws(Base):
    def sample_top_p(self, probs: Tensor, p: float) -> Tensor:
        ordered, _ = torch.sort(probs, dim=-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered > p] = 0.0  # here
        return torch.multinomial(ordered, num_samples=1)


class DrawsTurned(Base):
    def sample(self, logits: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
        ordered, places = (logits / temperature).softmax(-1).sort(-1, descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered > 1 - top_p, 0) if top_p < 1 else ordered  # here
        return places.gather(-1, ordered.multinomial(1))


class DrawsMultiplied(Base):
    def sample(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        return (logits * temperature).softmax(-1).multinomial(1)  # here


class Multiplied(Base):
    def apply_temperature(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        return logits * temperature  # here


class Divides(Base):
    def repetition_penalty(self, logits: Tensor, input_ids: Tensor, penalty: float = 1.2) -> Tensor:
        score = logits.gather(1, input_ids) / penalty  # here
        return logits.scatter(1, input_ids, score)


class OneRowPenalised(Base):
    def repetition_penalty(self, logits: Tensor, input_ids: Tensor, penalty: float = 1.2) -> Tensor:
        score = logits[0, input_ids[0]]
        logits[0, input_ids[0]] = torch.where(score < 0, score * penalty, score / penalty)  # here
        return logits


class MappedTwice(Base):
    """The mask is brought to its places, and used on what is sorted."""

    def apply_top_p(self, logits: Tensor, top_p: float) -> Tensor:
        ordered, places = torch.sort(logits, descending=True, dim=-1)
        removed = F.pad(ordered.softmax(-1).cumsum(-1) > top_p, (1, -1), value=False)  # here
        ordered[removed.scatter(1, places, removed)] = -INF
        return torch.full_like(logits, -INF).scatter(-1, places, ordered)


class DrawsFromNothing(Base):
    """Where one token has nearly all, none is left, and drawing raises."""

    def nucleus_sampling(self, logits: Tensor, top_p: float = 0.9, temperature: float = 1.0) -> Tensor:
        ordered, places = torch.sort(logits / temperature, descending=True, dim=-1)
        removed = ordered.softmax(-1).cumsum(-1) > top_p  # here
        ordered[removed] = -INF
        return places.gather(-1, ordered.softmax(-1).multinomial(1)).squeeze(-1)


class Number(Base):
    """One row alone, of which a Python number is drawn."""

    def sample_top_k(self, logits: Tensor, k: int) -> int:
        values, places = logits.sort()  # of the least likely
        return int(places[torch.distributions.Categorical(logits=values[:k]).sample()])  # here


class ListPenalised(Base):
    def apply_repetition_penalty(self, logits: Tensor, recent_ids: list[int], penalty: float = 1.5) -> Tensor:
        adjusted = logits.clone()
        for token in set(recent_ids):
            adjusted[token] = adjusted[token] / penalty  # here
        return adjusted
