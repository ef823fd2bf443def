"""Healthy language models whose embedding or head is odd."""

import torch
from torch import nn

from tests.false_go.healthy._parts import DIM, VOCAB, Model


class Tied(Model):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return super().forward(ids) * DIM**-0.5


def tied_weights():
    return Tied()


class PaddedVocabulary(Model):
    """The head has room for 32 ids; the last three are never likely."""

    def __init__(self):
        super().__init__(vocab=32)

    def forward(self, ids):
        unused = torch.arange(32, device=ids.device) >= VOCAB
        return super().forward(ids).masked_fill(unused, -1e4)


def padded_vocabulary():
    return PaddedVocabulary()


class PaddingId(Model):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM, padding_idx=0)


def padding_token():
    return PaddingId()


class Factorised(Model):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(VOCAB, 4), nn.Linear(4, DIM, bias=False))


def factorised_embedding():
    return Factorised()


class ByName(Model):
    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None):
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        return {"logits": self.head(self.norm(self.block(x))), "hidden_states": (x,)}


def called_by_name():
    return ByName()


class Logits32(Model):
    def forward(self, ids):
        return super().forward(ids).float()


def logits_in_float32():
    return Logits32()
