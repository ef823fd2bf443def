"""Sparse attention in three gated branches, written from the NSA paper's text: compressed, selected, sliding."""

import torch
from torch import nn

from nsa_doctor.subject.contract import Subject

VOCAB, DIM, HEADS, GROUPS = 47, 32, 4, 2
STRIDE, BLOCK, CHOSEN, WINDOW = 4, 8, 3, 12


class Pool(nn.Module):
    """One vector for each complete block of BLOCK tokens, a block starting every STRIDE tokens."""

    def __init__(self, width):
        super().__init__()
        self.where = nn.Parameter(0.1 * torch.randn(BLOCK, width))
        self.mix = nn.Linear(width, width)

    def blocks(self, x):
        return x.unfold(1, BLOCK, STRIDE).transpose(-1, -2)  # B, C, G, BLOCK, D

    def forward(self, x):
        return self.mix(torch.tanh(self.blocks(x) + self.where).mean(dim=-2))


class BranchGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(DIM, 16)
        self.out = nn.Linear(16, 3 * HEADS)

    def forward(self, x):
        """[B, S, HEADS, 3] in (0, 1)."""
        return torch.sigmoid(self.out(torch.relu(self.hidden(x)))).view(*x.shape[:2], HEADS, 3)


def softmax_where(scores, allowed):
    """Softmax over the last axis of what is allowed; a row without any gets zeros."""
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) * allowed


class SparseAttention(nn.Module):
    def __init__(self, pool=Pool, gate=BranchGate):
        super().__init__()
        self.d = DIM // HEADS
        self.to_q = nn.Linear(DIM, DIM, bias=False)
        self.to_kv = nn.ModuleDict(
            {name: nn.Linear(DIM, 2 * GROUPS * self.d, bias=False) for name in ("compressed", "selected", "sliding")}
        )
        self.pool_k, self.pool_v = pool(self.d), pool(self.d)
        self.gate = gate()
        self.to_out = nn.Linear(DIM, DIM, bias=False)

    def kv(self, name, x):
        k, v = self.to_kv[name](x).chunk(2, dim=-1)
        return k.unflatten(-1, (GROUPS, self.d)), v.unflatten(-1, (GROUPS, self.d))

    def attend(self, q, k, v, allowed):
        """q [B, S, G, h, d], k and v [B, T, G, d], allowed [..., S, T]; the output and the weights."""
        scores = torch.einsum("bsghd,btgd->bghst", q, k) / self.d**0.5
        weights = softmax_where(scores, allowed)
        return torch.einsum("bghst,btgd->bsghd", weights, v), weights

    def complete(self, S, C, device):
        """[S, C]: whether block c has ended at token s."""
        ends = torch.arange(C, device=device) * STRIDE + BLOCK - 1
        return ends[None, :] <= torch.arange(S, device=device)[:, None]

    def compressed(self, q, x):
        S = x.shape[1]
        if S < BLOCK:
            return torch.zeros_like(q), q.new_zeros(q.shape[0], GROUPS, S, 0)
        k, v = self.kv("compressed", x)
        k, v = self.pool_k(k), self.pool_v(v)
        o, weights = self.attend(q, k, v, self.complete(S, k.shape[1], x.device))
        return o, weights.sum(2)

    def importance(self, weights, S):
        """[B, G, S, J]: what each selection block is worth, by the compressed blocks that overlap it."""
        J = -(-S // BLOCK)
        starts = torch.arange(weights.shape[-1], device=weights.device) * STRIDE
        edges = torch.arange(J, device=weights.device)[:, None] * BLOCK
        overlap = (starts + BLOCK > edges) & (starts < edges + BLOCK)
        return weights @ overlap.T.to(weights.dtype)

    def choose(self, importance, S):
        """[B, G, S, J] bool: the first block, the token's own, and the best others, CHOSEN in all."""
        J = importance.shape[-1]
        own = torch.arange(S, device=importance.device)[:, None] // BLOCK
        block = torch.arange(J, device=importance.device)[None]
        worth = importance.masked_fill(block > own, -1.0).masked_fill((block == own) | (block == 0), 1e6)
        order = worth.argsort(dim=-1, descending=True, stable=True)[..., :CHOSEN]
        return torch.zeros_like(worth, dtype=torch.bool).scatter(-1, order, True) & (block <= own)

    def selected(self, q, x, importance):
        S = x.shape[1]
        blocks = self.choose(importance.detach(), S)
        tokens = blocks.repeat_interleave(BLOCK, dim=-1)[..., :S]
        k, v = self.kv("selected", x)
        return self.attend(q, k, v, (tokens & self.causal(S, x.device)).unsqueeze(2))[0]

    def causal(self, S, device):
        return torch.ones(S, S, dtype=torch.bool, device=device).tril()

    def near(self, S, device):
        return self.causal(S, device).triu(1 - WINDOW)

    def sliding(self, q, x):
        k, v = self.kv("sliding", x)
        return self.attend(q, k, v, self.near(x.shape[1], x.device))[0]

    def combine(self, branches, gates):
        """branches: three of [B, S, HEADS, d]; gates [B, S, HEADS, 3]."""
        return sum(gates[..., i : i + 1] * branch for i, branch in enumerate(branches))

    def forward(self, x):
        B, S, _ = x.shape
        q = self.to_q(x).view(B, S, GROUPS, HEADS // GROUPS, self.d)
        first, weights = self.compressed(q, x)
        importance = self.importance(weights, S)
        second = self.selected(q, x, importance)
        third = self.sliding(q, x)
        o = self.combine([branch.flatten(2, 3) for branch in (first, second, third)], self.gate(x))
        return self.to_out(o.flatten(2))


class Layer(nn.Module):
    def __init__(self, attention=SparseAttention, **parts):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(DIM), attention(**parts)
        self.ln2 = nn.LayerNorm(DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.SiLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class SparseLM(nn.Module):
    def __init__(self, attention=SparseAttention, **parts):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.layer = Layer(attention, **parts)
        self.norm = nn.LayerNorm(DIM)
        self.logits = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        return self.logits(self.norm(self.layer(self.tokens(ids))))


def gate_of(model, ids):
    """The gate as used in forward, one KV group's heads averaged: [B, S, GROUPS, 3]."""
    gates = model.layer.attn.gate(model.layer.ln1(model.tokens(ids)))
    return gates.unflatten(2, (GROUPS, HEADS // GROUPS)).mean(3)


def subject(make, name, **seams):
    def build(seed):
        torch.manual_seed(seed)
        return make()

    return Subject(
        name=name,
        build=build,
        forward=lambda model, ids: model(ids),
        input="tokens",
        width=VOCAB,
        **{"gate": gate_of, "packages": ("tests",), "max_length": 512, **seams},
    )
