"""Healthy subjects with caches of other kinds, offered through adapters."""

import torch
import torch.nn.functional as F
from torch import nn

from nsa_doctor import Adapter
from tests.false_go.healthy._parts import DIM, VOCAB, Attention, Block, hidden_from


class Doubling:
    """Memory that is doubled when it is full."""

    def __init__(self, window=None):
        self.memory, self.length, self.window = None, 0, window

    def add(self, k, v):
        new = torch.stack([k, v])
        needed = self.length + k.shape[2]
        if self.memory is None:
            self.memory = new.new_zeros(*new.shape[:3], 8, new.shape[-1])
        while self.memory.shape[3] < needed:
            self.memory = torch.cat([self.memory, torch.zeros_like(self.memory)], dim=3)
        self.memory[:, :, :, self.length : needed] = new
        self.length = needed
        return self.memory[:, :, :, :needed].unbind(0)


class Pages:
    """Keys and values in pages of four tokens, joined when they are read."""

    def __init__(self):
        self.pages, self.length = [], 0

    def add(self, k, v):
        for token in torch.stack([k, v]).split(1, dim=3):
            if not self.pages or self.pages[-1].shape[3] == 4:
                self.pages.append(token)
            else:
                self.pages[-1] = torch.cat([self.pages[-1], token], dim=3)
            self.length += 1
        return torch.cat(self.pages, dim=3).unbind(0)


class Remembering(Attention):
    def forward(self, x, cache=None):
        q, k, v = self.project(x)
        if cache is not None:
            k, v = cache.add(k, v)
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(2))


class Cached(nn.Module):
    """Token ids to logits, with the cache as an argument."""

    def __init__(self, mixer=Remembering):
        super().__init__()
        self.embed, self.mixer = nn.Embedding(VOCAB, DIM), mixer()
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, ids, cache=None):
        x = self.embed(ids)
        return self.head(self.norm(x + self.mixer(x, cache)))


def _adapter(cache, model=Cached):
    def prefill(module, ids):
        made = cache()
        return module(ids, made), made

    return Adapter(
        make=model,
        input="tokens",
        width=VOCAB,
        max_length=512,
        seams={"prefill": prefill, "step": lambda module, ids, made: (module(ids, made), made)},
    )


def doubling_cache():
    return _adapter(Doubling)


def paged_cache():
    return _adapter(Pages)


class Window(Remembering):
    def weights(self, scores):
        rows, columns = scores.shape[-2:]
        near = ~hidden_from(rows, columns, scores.device)
        near = near & hidden_from(rows, columns, scores.device).logical_not().triu(columns - rows - 11)
        return scores.masked_fill(~near, -1e4).softmax(-1)


def window_with_the_whole_cache():
    return _adapter(Doubling, lambda: Cached(Window))


class Whole(nn.Module):
    """Without a cache of keys: the cache is the ids so far, and every step computes all of them again."""

    def __init__(self):
        super().__init__()
        self.inner = Cached()

    def forward(self, ids, cache=None):
        if cache is None:
            return self.inner(ids)
        cache["ids"] = torch.cat([cache["ids"], ids], dim=1) if "ids" in cache else ids
        return self.inner(cache["ids"])[:, -ids.shape[1] :]


def everything_again_at_each_step():
    return _adapter(dict, Whole)


class Fading(nn.Module):
    """A leaky sum whose state alone is kept."""

    def __init__(self):
        super().__init__()
        self.into, self.out, self.rate = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Parameter(torch.ones(DIM))

    def forward(self, x, cache=None):
        state = x.new_zeros(x.shape[0], DIM) if not cache else cache["state"]
        a, rows = torch.sigmoid(self.rate), []
        for u in self.into(x).unbind(1):
            state = a * state + (1 - a) * torch.tanh(u)
            rows.append(state)
        if cache is not None:
            cache["state"] = state
        return self.out(torch.stack(rows, dim=1))


def state_as_cache():
    return _adapter(dict, lambda: Cached(Fading))


def declares_how_it_is_called():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x, scale):
            return self.block(x) * scale

    return Adapter(make=Two, call=lambda module, x: module(x, 2.0), input="embeddings", width=DIM)


def a_loss_of_its_own():
    def loss(module, ids):
        return F.cross_entropy(module(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return Adapter(make=Cached, input="tokens", width=VOCAB, max_length=512, seams={"loss": loss})


def training_alone():
    return Adapter(make=Block, input="embeddings", width=DIM, modes=("train",), max_length=256)
