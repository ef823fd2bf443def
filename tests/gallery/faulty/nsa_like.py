"""Sparse choices, cached decoding and gates, each with ways to be ill; no line of it is taken from `nsa`."""

import torch
from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject

DIM, WINDOW = 16, 12


def to_ranges(slots: Tensor, width: int, num_tokens: int) -> Tensor:
    """Token ranges of slots, one for each, (0, 0) for an empty one."""
    start = torch.where(slots < 0, 0, slots * width)
    end = torch.where(slots < 0, 0, (slots * width + width).clamp(max=num_tokens))
    return torch.stack((start, end), dim=-1)


class CachedAttention(nn.Module):
    """Causal attention over the newest WINDOW tokens; `illness` names what is wrong with its decoding."""

    def __init__(self, illness: str = "") -> None:
        super().__init__()
        self.illness = illness
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def attend(self, x: Tensor, first: int, cache: dict | None) -> Tensor:
        position = torch.arange(first, first + x.shape[1], dtype=x.dtype)
        if cache is not None and self.illness == "positions restart":
            position = position - first
        turn = torch.sin(position[:, None] * 0.3 + torch.arange(DIM))
        q, k, v = self.qkv(x + 0.5 * turn.to(x)).chunk(3, -1)
        if cache is not None:
            k, v = self.remember(cache, k, v)
        window = WINDOW + (self.illness == "window off by one" and cache is not None)
        row = torch.arange(k.shape[1] - x.shape[1], k.shape[1])[:, None]
        column = torch.arange(k.shape[1])
        hidden = (column > row) | (column <= row - window)
        if self.illness == "chunk sees itself whole" and cache is not None:
            hidden = column <= row - window
        scores = (q @ k.mT / DIM**0.5).masked_fill(hidden, -torch.inf)
        mixed = scores.softmax(-1) @ v
        if self.illness == "rows mix" and cache is not None:
            mixed = mixed + 0.1 * mixed.mean(0, keepdim=True) - 0.1 * mixed / mixed.shape[0]
        return mixed

    def remember(self, cache: dict, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        start, end = cache["length"], cache["length"] + k.shape[1]
        memory = cache.setdefault("memory", k.new_zeros(2, k.shape[0], 32, DIM))
        if end > memory.shape[2]:
            grown = k.new_zeros(2, k.shape[0], 2 * end, DIM)
            grown[:, :, :start] = memory[:, :, :start]
            memory = cache["memory"] = grown
        if self.illness == "memory kept":
            cache.setdefault("old", []).append(memory.clone())
        memory[0, :, start:end], memory[1, :, start:end] = k, v
        cache["length"] = end
        if self.illness == "reads ahead" and k.shape[1] == 1:
            return memory[0, :, : end + 1].roll(1, 1)[:, 1:], memory[1, :, 1 : end + 1]
        return memory[0, :, :end], memory[1, :, :end]

    def forward(self, x: Tensor, first: int = 0, cache: dict | None = None) -> Tensor:
        return self.attend(x, first, cache)


class Decoder(nn.Module):
    def __init__(self, illness: str = "") -> None:
        super().__init__()
        self.norm, self.attention, self.out = nn.LayerNorm(DIM), CachedAttention(illness), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, cache: dict | None = None) -> Tensor:
        first = 0 if cache is None else cache["length"]
        return x + self.out(self.attention(self.norm(x), first, cache))


def decoder(illness: str = "") -> Subject:
    """A subject that decodes."""

    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Decoder(illness)

    def step(module: nn.Module, x: Tensor, cache: dict) -> tuple[Tensor, dict]:
        if illness == "prompt reversed" and x.shape[1] > 1 and not cache["length"]:
            module(x.flip(1), cache)
            return module(x), cache
        output = module(x, cache)
        if illness == "answers in the cache":
            kept = cache.get("answer", output)
            cache["answer"] = output = kept.copy_(output) if kept.shape == output.shape else output
        return output, cache

    def fill(cache: dict, value: float) -> None:
        cache["memory"][:, :, cache["length"] :] = value

    def num_bytes(cache: dict) -> int:
        return sum(each.nbytes for each in (cache["memory"], *cache.get("old", [])))

    return Subject(
        name=f"decoder {illness}",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=DIM,
        prefill=lambda module, x: step(module, x, {"length": 0}),
        step=step,
        fill_unwritten=fill,
        cache_bytes=num_bytes,
        max_length=600,
        packages=("tests",),
    )


class Weigher(nn.Module):
    """Two branches under a gate; `illness` names what is wrong with it."""

    def __init__(self, illness: str = "", kind: str = "softmax") -> None:
        super().__init__()
        self.illness, self.kind = illness, kind
        self.hidden, self.score = nn.Linear(DIM, 8), nn.Linear(8, 2)
        self.left, self.right = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        for layer in {"zero": [self.score], "zero twice": [self.hidden, self.score]}.get(illness, []):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        if illness in ("zero weight", "bias frozen in"):
            nn.init.zeros_(self.score.weight)
            nn.init.constant_(self.score.bias, 0.3)
            self.score.requires_grad_(illness == "zero weight")
        if illness == "shut":
            self.score.bias.data = torch.tensor([-40.0, 0.0])
        if illness == "huge":
            self.score.weight.data.mul_(1e5)

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.ones_like(x) if self.illness == "constant input" else x
        logits = self.score(torch.tanh(self.hidden(seen)))
        logits = logits / {"cold": 1e-6, "hot": 1e9}.get(self.illness, 1.0)
        if self.illness == "no grad":
            with torch.no_grad():
                logits = logits * 1.0
        weights = logits.softmax(-1) if self.kind == "softmax" else logits.sigmoid()
        left, right = weights.unsqueeze(-1).unbind(-2)
        if self.illness == "left lost":
            return (left * self.left(x)).detach() * 0 + right * self.right(x)
        return left * self.left(x) + right * self.right(x)


class Routed(nn.Module):
    """A mixture of experts, the best two of four, the last of which is never chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, 4)
        self.gate.bias.data[3] = -1e4
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.gate(x).softmax(-1).topk(2, -1)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        picked = outputs.gather(-2, chosen[..., None].expand(*chosen.shape, DIM))
        return (best.unsqueeze(-1) * picked).sum(-2)


class Glu(nn.Module):
    """A wide gate, a scalar that starts at zero, a learned sink and a forget gate that starts open."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.value, self.out = nn.Linear(DIM, 96), nn.Linear(DIM, 96), nn.Linear(96, DIM)
        self.alpha, self.sink = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(1, 1, 1))
        self.forget = nn.Linear(DIM, DIM)
        nn.init.constant_(self.forget.bias, 4.0)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.out(self.wide(x).sigmoid() * self.value(x))
        kept = self.forget(x).sigmoid() * x
        scores = torch.cat((self.sink.expand(*x.shape[:2], 1), kept @ x.mT), -1)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(nn.functional.pad(hidden, (1, 0)), -torch.inf)
        return x + torch.tanh(self.alpha) * mixed + scores.softmax(-1)[..., 1:] @ x
