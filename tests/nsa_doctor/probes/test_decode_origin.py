"""The line on which decoding departs from one whole pass is named, where layers share their functions."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.probes.attention.decoding import guilty_module
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

WIDTH, ROOM = 8, 4


def turned(x: Tensor, start: int) -> Tensor:
    """Each token moved by its position."""
    return x * torch.cos(torch.arange(start, start + x.shape[1], dtype=x.dtype))[:, None]


def mixed(query: Tensor, memory: Tensor, start: int) -> Tensor:
    """Attention of tokens from `start` on to those up to themselves."""
    at = torch.arange(start, start + query.shape[1])[:, None]
    hidden = torch.arange(memory.shape[1])[None] > at
    scores = (query @ memory.transpose(1, 2)).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ memory


class Grown(nn.Module):
    """One attention whose cache doubles its room; `fault` is what is wrong with it."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        keys = turned(self.proj(x), 0)
        return self.answer(x, mixed(turned(x, 0), keys, 0))

    def answer(self, x: Tensor, y: Tensor) -> Tensor:
        return y * self.gate(x).sigmoid()

    def room(self, cache: dict[str, Any], end: int) -> None:
        """Room for so many tokens."""
        old, used = cache["keys"], cache["used"] - (self.fault == "growth")
        while end > cache["keys"].shape[1]:
            cache["keys"] = old.new_zeros(old.shape[0], 2 * cache["keys"].shape[1], WIDTH)
            cache["keys"][:, :used] = old[:, :used]  # growth

    def extend(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        start = cache["used"]
        end = start + x.shape[1]
        self.room(cache, end)
        at = start + 1 if self.fault == "positions" and start > 2 else start
        cache["keys"][:, start:end] = turned(self.proj(x), at)  # positions
        cache["used"] = end
        y = mixed(turned(x, start), cache["keys"][:, :end], start)
        first = x[:, :1] if self.fault == "gate" else x
        return self.answer(first, y)  # gate


def _subject(fault: str) -> Subject:
    def prefill(module: Grown, x: Tensor) -> tuple[Tensor, Any]:
        cache = {"keys": x.new_zeros(x.shape[0], ROOM, WIDTH), "used": 0}
        return module.extend(x, cache), cache

    step: Callable[..., Any] = lambda module, x, cache: (module.extend(x, cache), cache)  # noqa: E731
    build = lambda seed: (torch.manual_seed(seed), Grown(fault))[1]  # noqa: E731
    return Subject(
        name="grown",
        build=build,
        forward=lambda module, x: module(x),
        prefill=prefill,
        step=step,
        input="embeddings",
        width=WIDTH,
        packages=("tests",),
    )


@pytest.mark.parametrize(
    ("fault", "sizes", "token"),
    [("growth", [1] * 9, 4), ("positions", [1] * 9, 3), ("gate", [3, 3, 3], 1)],
    ids=["lost-in-growth", "wrong-positions", "another-tokens-gate"],
)
def test_the_line_of_a_fault_in_decoding_is_named(fault: str, sizes: list[int], token: int) -> None:
    sp = built(_subject(fault), dtype="float64")
    place = guilty_module(sp, sp.input(9), sizes, token)
    near = [linecache.getline(place.file, place.line + offset) for offset in (-1, 0, 1)]
    assert any(line.rstrip().endswith(f"# {fault}") for line in near), place


def joined(query: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
    """Attention to what is not hidden."""
    scores = (query @ memory.transpose(1, 2)).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ memory


class Windowed(nn.Module):
    """Attention to the newest five tokens, of which decoding keeps one too few."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        behind = at[:, None] - at
        return joined(x, self.proj(x), (behind < 0) | (behind >= 5))

    def extend(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        memory = torch.cat([cache["keys"], self.proj(x)], dim=1)
        cache["keys"] = memory = memory[:, -4:].clone()  # window
        return joined(x, memory, torch.zeros(1, memory.shape[1], dtype=torch.bool))


def _stepping(make: Callable[[], nn.Module], start: Callable[[Tensor], Any]) -> Subject:
    def prefill(module: Any, x: Tensor) -> tuple[Tensor, Any]:
        cache = start(x)
        return module.extend(x, cache), cache

    return Subject(
        name="stepping",
        build=lambda seed: (torch.manual_seed(seed), make())[1],
        forward=lambda module, x: module(x),
        prefill=prefill,
        step=lambda module, x, cache: (module.extend(x, cache), cache),
        input="embeddings",
        width=WIDTH,
        packages=("tests",),
    )


def _lines_near(subject: Subject, length: int, token: int) -> list[str]:
    sp = built(subject, dtype="float64")
    place = guilty_module(sp, sp.input(length), [1] * length, token)
    return [linecache.getline(place.file, place.line + offset).rstrip() for offset in (-1, 0, 1)]


def test_the_line_of_a_window_that_lost_a_token_is_named() -> None:
    near = _lines_near(_stepping(Windowed, lambda x: {"keys": x.new_zeros(x.shape[0], 0, WIDTH)}), 9, 4)
    assert any(line.endswith("# window") for line in near), near


def moved(blocks: Tensor, at: Tensor) -> Tensor:
    """Each block moved by its number."""
    return blocks * torch.cos(1 + at.to(blocks.dtype))[:, None]


def summed(query: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
    """A sum of what is not hidden, each weighted by itself: there may be nothing."""
    return (query @ memory.transpose(1, 2)).sigmoid().masked_fill(hidden, 0.0) @ memory


class Blocks(nn.Module):
    """Attention to the means of three tokens and to the newest five; `fault` is what decoding does wrong."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.far, self.near = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def run(self, x: Tensor, blocks: Tensor, recent: Tensor, start: int, base: int) -> Tensor:
        at = torch.arange(start, start + x.shape[1])[:, None]
        far = summed(x, blocks, at < 3 * torch.arange(blocks.shape[1]) + 2)
        behind = at - (base + torch.arange(recent.shape[1]))
        return far + summed(x, recent, (behind < 0) | (behind >= 5))

    def blocks_of(self, x: Tensor, first: int) -> Tensor:
        count = x.shape[1] // 3
        begin = 0 if self.fault == "blocks" else first
        numbers = torch.arange(begin, begin + count)  # blocks
        return moved(self.far(x[:, : 3 * count]).unflatten(1, (count, 3)).mean(2), numbers)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.blocks_of(x, 0), self.near(x), 0, 0)

    def extend(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        cache["waiting"] = torch.cat([cache["waiting"], x], 1)
        if cache["waiting"].shape[1] == 3:
            new = self.blocks_of(cache["waiting"], cache["blocks"].shape[1])
            cache["blocks"] = torch.cat([cache["blocks"], new], 1)
            cache["waiting"] = x[:, :0]
        start = cache["used"]
        kept = 4 if self.fault == "window" and start > 5 else 5
        cache["recent"] = torch.cat([cache["recent"], self.near(x)], 1)[:, -kept:].clone()  # window
        cache["used"] = start + 1
        return self.run(x, cache["blocks"], cache["recent"], start, start + 1 - cache["recent"].shape[1])


@pytest.mark.parametrize(
    ("fault", "token"), [("blocks", 5), ("window", 8)], ids=["blocks-restart", "short-as-one-ends"]
)
def test_restarted_positions_of_blocks_and_lost_keys_are_each_named(fault: str, token: int) -> None:
    def start(x: Tensor) -> dict[str, Any]:
        empty = x[:, :0]
        return {"waiting": empty, "blocks": empty, "recent": empty, "used": 0}

    near = _lines_near(_stepping(lambda: Blocks(fault), start), 12, token)
    assert any(line.endswith(f"# {fault}") for line in near), near
