"""Decoders with states of many makes; `illness` names what one way of filling the state does wrong."""

from collections import namedtuple
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject

DIM, HEADS, BLOCK, WINDOW, ROOM = 16, 2, 8, 6, 128


def rotate(x: Tensor, first: int) -> Tensor:
    half = x.shape[-1] // 2
    at = torch.arange(first, first + x.shape[1], dtype=x.dtype)
    angles = at[:, None] * 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@dataclass
class Branch:
    """Keys and values of one branch, grown token by token."""

    k: Tensor | None = None
    v: Tensor | None = None

    def add(self, k: Tensor, v: Tensor) -> None:
        self.k = k if self.k is None else torch.cat([self.k, k], 1)
        self.v = v if self.v is None else torch.cat([self.v, v], 1)


@dataclass
class State:
    """Of two branches: a window, and means of whole blocks with the tokens not yet in one."""

    near: Branch = field(default_factory=Branch)
    far: Branch = field(default_factory=Branch)
    waiting: list = field(default_factory=list)
    length: int = 0


class TwoBranches(nn.Module):
    """A window over rotated keys, and means of complete blocks of rotated keys, which no token of the block sees."""

    def __init__(self, illness: str = "") -> None:
        super().__init__()
        self.illness = illness
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.out = nn.Linear(DIM, DIM)

    def project(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)) for part in (self.q, self.k, self.v))
        return rotate(q, first), k, v

    def forward(self, x: Tensor, state: State | None = None) -> Tensor:
        state = State() if state is None else state
        return self.whole(x, state) if state.length == 0 and x.shape[1] > 1 else self.parts(x, state)

    def whole(self, x: Tensor, state: State) -> Tensor:
        q, raw, v = self.project(x, 0)
        k = rotate(raw, 0)
        count = x.shape[1] // BLOCK
        kept = raw if self.illness == "window raw" else k
        kept = rotate(raw, 1) if self.illness == "window one on" else kept
        state.near.add(kept[:, -WINDOW:], v[:, -WINDOW:])
        if self.illness == "window shifted":
            state.near = Branch(k[:, -WINDOW - 1 : -1], v[:, -WINDOW:])
        blocks_k, blocks_v = (part[:, : count * BLOCK].unflatten(1, (count, BLOCK)).mean(2) for part in (k, v))
        if self.illness != "blocks unfilled":
            state.far.add(blocks_k, blocks_v * (0.5 if self.illness == "blocks halved" else 1.0))
        else:
            state.far.add(torch.zeros_like(blocks_k), torch.zeros_like(blocks_v))
        state.waiting = list(torch.stack([k, v])[:, :, count * BLOCK :].unbind(2))
        if self.illness == "waiting forgotten":
            state.waiting = []
        state.length = x.shape[1] + (self.illness == "length one on")
        t = torch.arange(x.shape[1])
        near = (t[:, None] >= t) & (t[:, None] - t < WINDOW)
        far = (torch.arange(count) + 1) * BLOCK <= t[:, None] + 1
        return self.mix(q, k, v, near, blocks_k, blocks_v, far)

    def parts(self, x: Tensor, state: State) -> Tensor:
        return torch.cat([self.single(token, state) for token in x.split(1, 1)], 1)

    def single(self, x: Tensor, state: State) -> Tensor:
        q, k, v = self.project(x, state.length)
        k = rotate(k, 0 if self.illness == "steps at 0" else state.length)
        state.near.add(k, v)
        state.near.k, state.near.v = state.near.k[:, -WINDOW:], state.near.v[:, -WINDOW:]
        state.waiting.append(torch.stack([k, v])[:, :, 0])
        if len(state.waiting) == BLOCK:
            k, v = torch.stack(state.waiting).mean(0)
            state.far.add(k[:, None], v[:, None])
            state.waiting = []
        state.length += 1
        near = torch.ones(1, state.near.k.shape[1], dtype=torch.bool)
        count = 0 if state.far.k is None else state.far.k.shape[1]
        far_k, far_v = (k[:, :0], v[:, :0]) if state.far.k is None else (state.far.k, state.far.v)
        far_k, far_v = (far_k, far_v) if count else (state.near.k[:, :0], state.near.v[:, :0])
        far = torch.ones(1, count, dtype=torch.bool)
        return self.mix(q, state.near.k, state.near.v, near, far_k, far_v, far)

    def mix(self, q, k, v, near, far_k, far_v, far) -> Tensor:
        keys, values = torch.cat([k, far_k], 1), torch.cat([v, far_v], 1)
        seen = torch.cat([near, far], 1)
        scores = torch.einsum("bthd,bshd->bhts", q, keys).masked_fill(~seen, -torch.inf)
        return self.out(torch.einsum("bhts,bshd->bthd", scores.softmax(-1), values).flatten(2))


class Ring(nn.Module):
    """A window kept in a ring, which a prompt fills from its beginning: other slots than steps, the same tokens."""

    def __init__(self, illness: str = "") -> None:
        super().__init__()
        self.illness = illness
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, state: dict | None = None) -> Tensor:
        if state is None:
            state = self.fresh(x)
        if state["count"] == 0 and x.shape[1] > 1:
            return self.whole(x, state)
        return torch.cat([self.single(token, state) for token in x.split(1, 1)], 1)

    def fresh(self, x: Tensor) -> dict:
        return {"ring": torch.empty(x.shape[0], WINDOW, 2 * DIM, dtype=x.dtype), "count": 0, "next": 0}

    def whole(self, x: Tensor, state: dict) -> Tensor:
        q, kv = self.q(x), torch.cat([self.k(x), self.v(x)], -1)
        last = kv[:, -WINDOW:]
        state["ring"][:, : last.shape[1]] = last
        state["count"], state["next"] = last.shape[1], last.shape[1] % WINDOW
        if self.illness == "ring begins anew":
            state["next"] = (state["next"] + 2) % WINDOW
        t = torch.arange(x.shape[1])
        near = (t[:, None] >= t) & (t[:, None] - t < WINDOW)
        return self.mix(q, kv, near)

    def single(self, x: Tensor, state: dict) -> Tensor:
        state["ring"][:, state["next"]] = torch.cat([self.k(x), self.v(x)], -1)[:, 0]
        state["next"] = (state["next"] + 1) % WINDOW
        state["count"] = min(WINDOW, state["count"] + 1)
        used = torch.arange(WINDOW) < state["count"]
        return self.mix(self.q(x), torch.where(used[:, None], state["ring"], 0.0), used[None])

    def mix(self, q: Tensor, kv: Tensor, near: Tensor) -> Tensor:
        k, v = kv.chunk(2, -1)
        return self.out((q @ k.mT).masked_fill(~near, -torch.inf).softmax(-1) @ v)


Kept = namedtuple("Kept", "tail sums")


class Convolution(nn.Module):
    """A short causal convolution and a decaying sum; the state is a tuple that every call makes anew."""

    def __init__(self, illness: str = "") -> None:
        super().__init__()
        self.illness = illness
        self.kernel, self.mix = nn.Conv1d(DIM, DIM, 4, groups=DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, None)[0]

    def run(self, x: Tensor, state: Kept | None) -> tuple[Tensor, Kept]:
        is_prompt = state is None
        state = Kept(x.new_zeros(x.shape[0], 3, DIM), x.new_zeros(x.shape[0], DIM)) if state is None else state
        seen = torch.cat([state.tail, x], 1)
        y = self.kernel(seen.mT).mT
        sums = state.sums
        rows = []
        for row in y.unbind(1):
            sums = 0.9 * sums + row
            rows.append(sums)
        tail = seen[:, -3:]
        if is_prompt and self.illness == "tail unfilled":
            tail = torch.zeros_like(tail)
        return self.mix(torch.stack(rows, 1)), Kept(tail, sums)


class Held(nn.Module):
    """Keeps its memory itself: buffers as long as may be, of which the unwritten part holds anything."""

    def __init__(self, illness: str = "") -> None:
        super().__init__()
        self.illness = illness
        self.q, self.kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM)
        self.register_buffer("memory", None, persistent=False)
        self.length = 0

    def forward(self, x: Tensor, keeps: bool = False) -> Tensor:
        kv, past = self.kv(x), 0
        if keeps:
            past = self.length
            if self.memory is None or self.memory.shape[0] != x.shape[0]:
                self.memory = torch.empty(x.shape[0], ROOM, 2 * DIM, dtype=x.dtype)
            begin = past + (self.illness == "one slot on" and past > 0)
            room = slice(begin, begin + x.shape[1])
            self.memory[:, room] = kv
            self.length = past + x.shape[1]
            kv = self.memory[:, : self.length]
        k, v = kv.chunk(2, -1)
        seen = torch.ones(x.shape[1], k.shape[1], dtype=torch.bool).tril(past)
        return (self.q(x) @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    def start(self, x: Tensor) -> Tensor:
        self.length, self.memory = 0, None
        y = self(x, True)
        if self.illness == "prompt cut" and x.shape[1] > 4:
            self.memory[:, 0] = 0.0
        return y


def _subject(make, prefill, step) -> Subject:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    return Subject(
        name="states",
        build=build,
        forward=lambda module, x: module(x),
        prefill=prefill,
        step=step,
        input="embeddings",
        width=DIM,
        max_length=120,
        packages=("tests",),
    )


def two_branches(illness: str = "") -> Subject:
    def prefill(module, x):
        state = State()
        return module(x, state), state

    return _subject(lambda: TwoBranches(illness), prefill, lambda module, x, state: (module(x, state), state))


def ring(illness: str = "") -> Subject:
    def prefill(module, x):
        state = module.fresh(x)
        return module(x, state), state

    return _subject(lambda: Ring(illness), prefill, lambda module, x, state: (module(x, state), state))


def convolution(illness: str = "") -> Subject:
    return _subject(
        lambda: Convolution(illness),
        lambda module, x: module.run(x, None),
        lambda module, x, state: module.run(x, state),
    )


def held(illness: str = "") -> Subject:
    return _subject(
        lambda: Held(illness),
        lambda module, x: (module.start(x), None),
        lambda module, x, _: (module(x, True), None),
    )
