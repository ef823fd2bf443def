"""Scores scaled twice, the wrong way or by the tokens are found, by line; every way to scale once is silent."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE
Attend = Callable[["Layer", Tensor, Tensor, Tensor], Tensor]


class Layer(nn.Module):
    """Attention by `attend(layer, q, k, v)`, each [B, H, S, D]; `holds` are its attributes."""

    def __init__(self, attend: Attend, **holds: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend = attend
        vars(self).update(holds)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(self.attend(self, q, k, v).transpose(1, 2).flatten(2))


def by_hand(scores: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def before_what_scales(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * SIZE**-0.5
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def within_what_scales(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q * SIZE**-0.5, k, v, is_causal=True)


def by_one(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


def twice_by_hand(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q / math.sqrt(SIZE)
    scores = q @ k.mT
    scores = scores / math.sqrt(SIZE)
    return by_hand(scores, v)


def halves_before_what_scales(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k * SIZE**-0.25
    q = q * SIZE**-0.25
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def times_the_root(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores = scores * SIZE**0.5
    return by_hand(scores, v)


def not_at_all(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return by_hand(scores, v)


def by_tokens(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q / math.sqrt(q.shape[-2])
    return by_hand(q @ k.mT, v)


def by_tokens_fused(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=k.shape[2] ** -0.5)


def by_tokens_in_halves(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand((q * q.shape[2] ** -0.25) @ (k * k.shape[2] ** -0.25).mT, v)


def by_tokens_and_one(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (torch.cat([x[..., :1, :], x], -2) for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(k.shape[-2])
    return by_hand(scores, v)[..., 1:, :]


def below_zero(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * (SIZE * -0.5)
    return scaled_dot_product_attention(q, k, v, scale=1.0)


def by_distance(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1)[..., None, :]
    return by_hand(-(squares - 2 * q @ k.mT) * SIZE**-0.5, v)


def by_a_factor(q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
    return by_hand(q @ k.mT * factor, v)


def handed_the_root(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    factor = SIZE**0.5
    return by_a_factor(q, k, v, factor)


class KeptRoot(Layer):
    """The factor is made where the layer is, and handed on by a line that is right."""

    def __init__(self) -> None:
        super().__init__(handed_the_root)
        self.factor = SIZE**0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(by_a_factor(q, k, v, self.factor).transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class Options:
    """How to attend."""

    scale: float
    is_causal: bool = True


def attends_as_asked(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=options.is_causal, scale=options.scale)


def asked_for_the_root(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    options = Options(
        is_causal=True,
        scale=SIZE**0.5,
    )
    return attends_as_asked(q, k, v, options)


FAULTY: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "before what scales": (lambda: Layer(before_what_scales), "0.25 twice", "q = q * SIZE**-0.5"),
    "within what scales": (
        lambda: Layer(within_what_scales),
        "and by its call: by 0.0625 in all",
        "return scaled_dot_product_attention(q * SIZE**-0.5, k, v, is_causal=True)",
    ),
    "twice by hand": (lambda: Layer(twice_by_hand), "0.25 twice", "q = q / math.sqrt(SIZE)"),
    "halves before what scales": (
        lambda: Layer(halves_before_what_scales),
        "half by the queries and half by the keys, and by its call: by 0.0625 in all",
        "return scaled_dot_product_attention(q, k, v, is_causal=True)",
    ),
    "times the root": (lambda: Layer(times_the_root), "multiplied by 4", "scores = scores * SIZE**0.5"),
    "below zero": (lambda: Layer(below_zero), "multiplied by -8, so that the keys least", "q = q * (SIZE * -0.5)"),
    "handed the root": (lambda: Layer(handed_the_root), "multiplied by 4", "return by_a_factor(q, k, v, factor)"),
    "asked for the root": (lambda: Layer(asked_for_the_root), "multiplied by 4", "scale=SIZE**0.5,"),
    "a root that is kept": (KeptRoot, "multiplied by 4", "self.factor = SIZE**0.5"),
    "normed and scaled": (lambda: Layer(normed_and_scaled), "0.25 twice", "q = q * SIZE**-0.5"),
    "normed and times the root": (
        lambda: Layer(normed_and_times_the_root),
        "multiplied by 4",
        "return scaled_dot_product_attention(q, k, v, scale=SIZE**0.5)",
    ),
    "by the tokens": (
        lambda: Layer(by_tokens),
        "0.2294 at 19 tokens and by 0.1741 at 33",
        "q = q / math.sqrt(q.shape[-2])",
    ),
    "by the tokens, fused": (
        lambda: Layer(by_tokens_fused),
        "not of the channels of a head, 0.25",
        "return scaled_dot_product_attention(q, k, v, is_causal=True, scale=k.shape[2] ** -0.5)",
    ),
    "by the tokens, in halves": (
        lambda: Layer(by_tokens_in_halves),
        "number of tokens",
        "return by_hand((q * q.shape[2] ** -0.25) @ (k * k.shape[2] ** -0.25).mT, v)",
    ),
    "by the tokens and one": (
        lambda: Layer(by_tokens_and_one),
        "0.2236 at 20 tokens and by 0.1715 at 34",
        "scores = q @ k.mT / math.sqrt(k.shape[-2])",
    ),
}


def fused(scale: float | None) -> Attend:
    return lambda layer, q, k, v: scaled_dot_product_attention(q, k, v, scale=scale)


def fused_apart(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.zeros(q.shape[-2], k.shape[-2], requires_grad=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, hidden.to(q), scale=1 / SIZE)


def half_each(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand((q * SIZE**-0.25) @ (k * SIZE**-0.25).mT, v)


def scaled_in_place(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q.mul_(SIZE**-0.5)
    return by_hand(q @ k.mT, v)


def normed(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand((normalize(q, dim=-1) * SIZE**0.5) @ normalize(k, dim=-1).mT, v)


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def scaled_and_normed(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * SIZE**-0.5
    return scaled_dot_product_attention(rms(q), rms(k), v)


def normed_and_scaled(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = rms(q)
    q = q * SIZE**-0.5
    return scaled_dot_product_attention(q, rms(k), v)


def normed_and_times_the_root(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = nn.functional.rms_norm(q, (SIZE,)), nn.functional.layer_norm(k, (SIZE,))
    return scaled_dot_product_attention(q, k, v, scale=SIZE**0.5)


def capped(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(4.0 * torch.tanh(q @ k.mT * SIZE**-0.5 / 4.0), v)


def scaled_by_product(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q.flatten(0, 1), k.flatten(0, 1)
    bias = torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
    return by_hand(torch.baddbmm(bias, q, k.mT, alpha=SIZE**-0.5).unflatten(0, (-1, HEADS)), v)


def turned(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(q.shape[-2], dtype=q.dtype, device=q.device)[None, :, None] @ q.new_full((1, 1, 1), 1 / 7)
    q, k = (torch.cat([x[..., :8] * at.cos(), x[..., 8:] * at.sin()], -1) for x in (q, k))
    return by_hand(q * SIZE**-0.5 @ k.mT, v)


def root_of_each(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * SIZE**-0.5
    k = k * SIZE**-0.5
    return by_hand(q @ k.mT, v)


def normed_by_a_power(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (x / (x.square().sum(-1, keepdim=True) ** 0.5 + 1e-6) for x in (q, k))
    return by_hand(q @ k.mT * SIZE**0.5, v)


def by_log_of_tokens(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(q @ k.mT * (math.log(q.shape[-2], 512) * SIZE**-0.5), v)


def by_a_chunk(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Chunks of as many tokens as a head has channels."""
    length = q.shape[-2]
    q, k, v = (nn.functional.pad(x, (0, 0, 0, -length % SIZE)).unflatten(2, (-1, SIZE)) for x in (q, k, v))
    return by_hand(q @ k.mT * SIZE**-0.5, v).flatten(2, 3)[:, :, :length]


def of_channels(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Channels read channels: what is summed over is tokens."""
    return ((q.mT @ k) * q.shape[-2] ** -0.5).softmax(-1).matmul(v.mT).mT


def by_a_number(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(q @ k.mT * 19**-0.5, v)


def without_softmax(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-2] ** -0.5).tril() @ v


def by_the_width(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(q @ k.mT / math.sqrt(WIDTH), v)


class OneTemperature(Layer):
    """One factor is learned."""

    def __init__(self) -> None:
        super().__init__(lambda layer, q, k, v: by_hand(q @ k.mT * self.temperature, v))
        self.temperature = nn.Parameter(torch.tensor(19**-0.5))


class Tempered(Layer):
    """Queries and keys of length one, and how sharp each head is."""

    def __init__(self) -> None:
        super().__init__(lambda layer, q, k, v: by_hand((unit(q) @ unit(k).mT) * self.temperature, v))
        self.temperature = nn.Parameter(torch.full((HEADS, 1, 1), 10.0))


def unit(x: Tensor) -> Tensor:
    x = rms(x)
    return x * SIZE**-0.5


class ScaledWeights(nn.Module):
    """The factor is part of the weights, by which queries are projected."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, SIZE), nn.Linear(WIDTH, 2 * SIZE), nn.Linear(SIZE, WIDTH)
        self.scale = SIZE**-0.5

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = nn.functional.linear(x, self.q.weight * self.scale), self.kv(x).chunk(2, -1)
        return self.out(by_hand(q @ k.mT, v))


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "as torch scales": lambda: Layer(fused(None), scale=SIZE**-0.5),
    "as it is told": lambda: Layer(fused(SIZE**-0.5), scale=SIZE**-0.5),
    "by the channels": lambda: Layer(fused(1 / SIZE)),
    "by the channels, apart": lambda: Layer(fused_apart),
    "half each": lambda: Layer(half_each),
    "by distance": lambda: Layer(by_distance),
    "in place": lambda: Layer(scaled_in_place, scale=SIZE**-0.5),
    "not at all, on purpose": lambda: Layer(not_at_all),
    "not at all": lambda: Layer(not_at_all, scale=SIZE**-0.5),
    "by one, on purpose": lambda: Layer(by_one),
    "by the channels, in two halves": lambda: Layer(root_of_each),
    "by a product": lambda: Layer(scaled_by_product, scale=SIZE**-0.5),
    "scaled and normed": lambda: Layer(scaled_and_normed),
    "by the logarithm of the tokens": lambda: Layer(by_log_of_tokens),
    "by a chunk": lambda: Layer(by_a_chunk),
    "channels that read channels": lambda: Layer(of_channels),
    "by a number like that of the tokens": lambda: Layer(by_a_number),
    "one temperature": OneTemperature,
    "by the width": lambda: Layer(by_the_width),
    "by the width, fused": lambda: Layer(fused(WIDTH**-0.5)),
    "turned": lambda: Layer(turned, scale=SIZE**-0.5),
}
UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "by a power": lambda: Layer(normed_by_a_power),
    "a temperature for each head": Tempered,
    "normed": lambda: Layer(normed, scale=SIZE**-0.5),
    "capped": lambda: Layer(capped),
    "scaled weights": ScaledWeights,
    "without a softmax": lambda: Layer(without_softmax),
}


NOTED = "scores of queries and keys of 16 channels are multiplied by nothing before their softmax"


WIDE = (
    "scores of 2 heads of 16 channels are multiplied by 0.1768, the inverse root of all 32 channels; that of the "
    "channels of a head is 0.25"
)
WIDE_NAMES = ("by the width", "by the width, fused")
BARE = {"not at all, on purpose": "", "by one, on purpose": "", "not at all": ", though Layer holds scale = 0.25"}


def examined(make: Callable[[], nn.Module], seed: int = 0) -> Result:
    subject = small_subject(make, width=WIDTH, seed=seed)
    return run_check(registry.load("FWD230"), subject)


@pytest.mark.parametrize("name", FAULTY)
def test_a_wrong_scale_is_found_at_its_line(name: str) -> None:
    make, said, line = FAULTY[name]
    (finding,) = examined(make).findings
    assert said in finding.message
    assert Path(finding.where.file).read_text().splitlines()[finding.where.line - 1].strip() == line


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_scaled_once_is_silent(name: str, seed: int) -> None:
    result = examined(HEALTHY[name], seed)
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason
    notes = [note.partition(" (")[0] for note in result.notes]
    wide = [WIDE for each in WIDE_NAMES if each == name]
    assert notes == [NOTED + said for each, said in BARE.items() if each == name] + wide


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_not_judged(name: str) -> None:
    result = examined(UNKNOWN[name])
    assert (result.verdict, result.findings) == (Verdict.SKIP, ())
