"""Positions that are made for nothing are found, at the function that does not read them; all others are silent."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, VOCABULARY, LONGEST = 8, 31, 128


class Angles(nn.Module):
    """Sine and cosine of each position's angles."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(x.shape[1], device=x.device).to(x.dtype)
        angle = at[:, None] * 10 ** -torch.arange(WIDTH // 2, device=x.device).to(x.dtype)
        return angle.cos(), angle.sin()


def turned(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    one, other = x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class Attention(nn.Module):
    """Attention that turns queries and keys where it is told to."""

    def __init__(self, is_causal: bool, turns: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.is_causal, self.turns = is_causal, turns

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.turns and rotation is not None:
            q, k = turned(q, rotation), turned(k, rotation)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)


class Unturned(Attention):
    """Is handed a rotation and goes on without."""

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)


class Model(nn.Module):
    """Two layers of attention over tokens, which are handed the angles."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rotary = Angles()
        self.layers = nn.ModuleList(layers)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        rotation = self.rotary(x)
        for layer in self.layers:
            x = x + layer(x, rotation)
        return x


class Table(nn.Module):
    """A fixed table of positions, read at `positions(S)`, before attention or a layer for each position."""

    def __init__(self, positions: Callable[[int], Tensor], is_mixed: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("pe", torch.randn(LONGEST, WIDTH))
        self.positionwise = nn.Linear(WIDTH, WIDTH)
        self.attention = Attention(is_causal=False, turns=False) if is_mixed else None
        self.positions = positions

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.pe[self.positions(ids.shape[1]).to(ids.device)]
        x = x if self.attention is None else x + self.attention(x)
        return x + self.positionwise(x)


class NoPositions(nn.Module):
    """A bag of tokens on purpose: nothing in it speaks of places but a layer that acts on each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(VOCABULARY, WIDTH), Attention(is_causal=False, turns=False)
        self.pos_ffn = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.pos_ffn(x + self.attention(x))


class Gated(Model):
    """Its layers begin at a gate of zero."""

    def __init__(self) -> None:
        super().__init__(Attention(is_causal=True, turns=True))
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return x + self.gate * self.layers[0](x, self.rotary(x))


class Refilled(nn.Module):
    """Fills its table in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(VOCABULARY, WIDTH), Attention(is_causal=False, turns=False)
        self.register_buffer("positions", torch.zeros(LONGEST, WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)[:, None]
        self.positions[: ids.shape[1]] = (at / 3).sin().to(self.positions)
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        return x + self.attention(x)


class Expanded(nn.Module):
    """Its table is one row, seen many times, beside a rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rotary = nn.Embedding(VOCABULARY, WIDTH), Angles()
        self.pe = torch.zeros(1, WIDTH).expand(LONGEST, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.pe[: ids.shape[1]].to(self.embed.weight)
        return turned(x, self.rotary(x)).cumsum(1)


class Learned(nn.Module):
    """A table that is trained, and that a flag leaves out: whether it learns is told elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        self.wpe(torch.arange(ids.shape[1], device=ids.device))
        return self.embed(ids)


class Vectorised(Model):
    """Makes its mask by torch.vmap, of functions of its own."""

    def __init__(self) -> None:
        super().__init__(Attention(is_causal=True, turns=True))

    def forward(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)
        seen = torch.vmap(torch.vmap(self.sees, (None, 0)), (0, None))(at, at)
        return super().forward(ids) + 0 * seen.sum()

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query


class Heads(nn.Module):
    """Two heads of one layer of embeddings, turned by their tokens' places, or each by its own number."""

    def __init__(self, is_causal: bool, turns_tokens: bool) -> None:
        super().__init__()
        self.qkv, self.rotary = nn.Linear(2 * WIDTH, 6 * WIDTH), Angles()
        self.is_causal, self.turns_tokens = is_causal, turns_tokens

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH)).unbind(2)  # [B, S, 2, WIDTH]
        laid_out = (lambda t: t.transpose(1, 2)) if self.turns_tokens else (lambda t: t)
        q, k = (laid_out(turned(laid_out(t), self.rotary(laid_out(t)[0]))) for t in (q, k))  # here
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return y.transpose(1, 2).flatten(2)


def examined(make: Callable[[], nn.Module], seed: int = 0, kind: str = "tokens") -> Result:
    subject = small_subject(
        make, input=kind, width=VOCABULARY if kind == "tokens" else 2 * WIDTH, max_length=LONGEST, seed=seed
    )
    return run_check(registry.load("FWD229"), subject)


class SinusoidalPosEmb(nn.Module):
    """Sines of a number for each token."""

    def forward(self, t: Tensor) -> Tensor:
        angles = t[..., None] * 10 ** -torch.arange(WIDTH // 2).to(t)
        return torch.cat((angles.sin(), angles.cos()), -1)


class Denoises(nn.Module):
    """Each token by itself, of which the amount of noise is given; how it is called is given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.of_time, self.embedding = name, nn.Embedding(VOCABULARY, WIDTH)
        self.add_module(name, nn.Sequential(SinusoidalPosEmb()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x)
        return (y + getattr(self, self.of_time)(torch.ones_like(y[..., 0]))) @ self.embedding.weight.T


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "turned, causal": lambda: Model(*(Attention(is_causal=True, turns=True) for _ in range(2))),
    "turned, an encoder": lambda: Model(*(Attention(is_causal=False, turns=True) for _ in range(2))),
    "turned in one layer": lambda: Model(Unturned(is_causal=True, turns=False), Attention(is_causal=True, turns=True)),
    "a table": lambda: Table(torch.arange),
    "a table and no attention": lambda: Table(torch.arange, is_mixed=False),
    "a gate of zero": Gated,
    "a mask made by vmap": Vectorised,
}


class WithoutThem(nn.Module):
    """What stands where positions might be hands its input on."""

    def __init__(self, positions: nn.Module) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), positions
        self.layer = Attention(is_causal=False, turns=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.positions(self.embedding(ids)))


NOTHING_TO_SAY: dict[str, Callable[[], nn.Module]] = {
    "a bag of tokens": NoPositions,
    "a learned table": Learned,
    "nothing in their place": lambda: WithoutThem(nn.Identity()),
    "what drops some of it": lambda: WithoutThem(nn.Dropout(0.1)),
    "a time": lambda: Denoises("time_mlp"),
    "an amount of noise": lambda: Denoises("noise_level_embedding"),
}


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_rotation_that_is_not_read_is_found_where_it_is_handed_to(is_causal: bool) -> None:
    (finding,) = examined(lambda: Model(*(Unturned(is_causal=is_causal, turns=False) for _ in range(2)))).findings
    assert "Unturned.forward is handed them as rotation and does not read it" in finding.message
    assert finding.where.line == inspect.getsourcelines(Unturned.forward)[1]
    assert finding.where.module_class == "Unturned"


def test_a_place_that_is_the_same_for_all_tokens_is_found_where_the_table_is_read() -> None:
    (finding,) = examined(lambda: Table(lambda length: torch.zeros(length, dtype=torch.long))).findings
    assert finding.message.startswith("tokens in another order give the same outputs in that order at S=19")
    line = Path(finding.where.file).read_text().splitlines()[finding.where.line - 1]
    assert "self.pe[" in line


@pytest.mark.parametrize("make", [Refilled, Expanded])
def test_a_table_that_may_be_read_otherwise_is_a_note_at_most(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
@pytest.mark.parametrize("name", HEALTHY)
def test_positions_that_count_are_silent(name: str, seed: int) -> None:
    result = examined(HEALTHY[name], seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("name", NOTHING_TO_SAY)
def test_what_has_no_positions_or_trains_them_is_not_judged(name: str) -> None:
    result = examined(NOTHING_TO_SAY[name])
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_rotation_of_heads_in_place_of_tokens_is_found(is_causal: bool) -> None:
    (finding,) = examined(lambda: Heads(is_causal, turns_tokens=False), kind="embeddings").findings
    assert finding.message.startswith("the order of earlier tokens" if is_causal else "tokens in another order")
    assert "rotary is used" in finding.message
    assert Path(finding.where.file).read_text().splitlines()[finding.where.line - 1].endswith("# here")
    healthy = examined(lambda: Heads(is_causal, turns_tokens=True), kind="embeddings")
    assert (healthy.verdict, healthy.findings) == (Verdict.PASS, ())


def test_sines_that_are_no_times_and_the_same_for_all_tokens_are_found() -> None:
    (finding,) = examined(lambda: Denoises("place")).findings
    assert "although place.0 is used" in finding.message
