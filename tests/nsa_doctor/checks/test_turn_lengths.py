"""Turns by tables of sines that change lengths are found at their line; rotations of every make are silent."""

from collections.abc import Callable
from linecache import getline

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH, HEADS, D = 16, 2, 8
Turn = Callable[[Tensor], Tensor]  # of [B, H, S, D]


def angles(length: int, width: int = D, base: float = 1000.0) -> Tensor:
    return torch.arange(length)[:, None] * base ** (-torch.arange(0, width, 2) / width)


def waves(x: Tensor) -> tuple[Tensor, Tensor]:
    own = angles(x.shape[-2], x.shape[-1])
    return own.cos().to(x), own.sin().to(x)


class Attends(nn.Module):
    """Attention whose queries and keys are turned first."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.qkv, self.out, self.turn = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), turn

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, D)).permute(2, 0, 3, 1, 4)
        weights = (self.turn(q) @ self.turn(k).mT / D**0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(-2))


def halves(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def backwards(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


def reflected(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, a * sin - b * cos), dim=-1)


def pairs(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def written(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    out = torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
    return out


def in_place(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    a, b = x.chunk(2, dim=-1)
    out = x * torch.cat((cos, cos), -1)
    out[..., : D // 2] -= b * sin
    out[..., D // 2 :] += a * sin
    return out


def rotate_half(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) for each in waves(x))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), -1) * sin


def with_addcmul(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) for each in waves(x))
    a, b = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((-b, a), -1), sin)


def rotate_every_two(x: Tensor) -> Tensor:
    cos, sin = (each.repeat_interleave(2, -1) for each in waves(x))
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def as_complex(x: Tensor) -> Tensor:
    own = angles(x.shape[-2])
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).double()) * torch.polar(torch.ones_like(own), own)
    return torch.view_as_real(turned).flatten(-2).to(x)


def partly(x: Tensor) -> Tensor:
    return torch.cat((rotate_half(x[..., :4]), x[..., 4:]), dim=-1)


def scaled(x: Tensor) -> Tensor:
    return 1.3 * halves(x)


def of_yarn(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) * 1.2 for each in waves(x))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), -1) * sin


def of_xpos(x: Tensor) -> Tensor:
    own = (torch.arange(0, D, 2) + 0.4 * D) / (1.4 * D)
    scale = own ** ((torch.arange(x.shape[-2])[:, None] - x.shape[-2] // 2) / 64)
    cos, sin = (torch.cat((each * scale.to(x),) * 2, -1) for each in waves(x))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), -1) * sin


def by_two_axes(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[-2])
    made = []
    for own, part in ((place // 8, x[..., :4]), (place % 8, x[..., 4:])):
        turned = own[:, None] * 100.0 ** (-torch.arange(0, 4, 2) / 4)
        cos, sin = (torch.cat((each, each), -1).to(x) for each in (turned.cos(), turned.sin()))
        a, b = part.chunk(2, dim=-1)
        made.append(part * cos + torch.cat((-b, a), -1) * sin)
    return torch.cat(made, dim=-1)


def by_sections(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[-2])
    three = torch.stack((place, place // 8, place % 8))[..., None] * 1000.0 ** (-torch.arange(0, D, 2) / D)
    own = torch.cat([each[axis % 3] for axis, each in enumerate(three.split((2, 1, 1), dim=-1))], dim=-1)
    cos, sin = (torch.cat((each, each), -1).to(x) for each in (own.cos(), own.sin()))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), -1) * sin


def rounded(x: Tensor) -> Tensor:
    cos, sin = (each.bfloat16().to(x) for each in waves(x))
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def fading(x: Tensor) -> Tensor:
    own = angles(x.shape[-2])
    factors = torch.exp(torch.complex(-0.05 * torch.arange(x.shape[-2])[:, None].expand_as(own), own))
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).double()) * factors).flatten(-2).to(x)


def windowed(x: Tensor) -> Tensor:
    window = 0.5 - 0.5 * (2 * torch.pi * torch.arange(x.shape[-2]) / x.shape[-2]).cos()
    return x * window[:, None].to(x) + x.roll(1, -1)


def reweighed(x: Tensor) -> Tensor:
    own = torch.arange(x.shape[-2])[:, None] * torch.pi / 2 / x.shape[-2]
    return torch.cat((x * own.cos().to(x), x * own.sin().to(x)), dim=-1)


def modulated(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) for each in waves(x))
    return x * (1 + 0.5 * cos) + sin


def mixing_tokens(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) for each in waves(x))
    return x * cos + x.roll(1, -2) * sin


def by_its_own_phase(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * b.cos() + b * a.sin(), b), dim=-1)


def of_one_angle(x: Tensor) -> Tensor:
    phase = torch.arange(D // 2).to(x)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * phase.cos() - b * phase.sin(), a * phase.sin() - b * phase.cos()), dim=-1)


def between_two(x: Tensor) -> Tensor:
    share = torch.linspace(0, 1, x.shape[-2])[:, None].to(x)
    a, b = x.chunk(2, dim=-1)
    return a * ((1 - share) * 1.2).sin() / 0.93 + b * (share * 1.2).sin() / 0.93


class Cached(Attends):
    """Tables that are kept in buffers and read by an index."""

    def __init__(self) -> None:
        super().__init__(self.turned)
        own = angles(1024)
        self.register_buffer("cos", own.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", own.sin().repeat(1, 2), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[-2])
        a, b = x.chunk(2, dim=-1)
        return x * self.cos[place] + torch.cat((-b, a), -1) * self.sin[place]


class CachedWrong(Cached):
    """The half that is turned forward is turned back."""

    def turned(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[-2])
        a, b = x.chunk(2, dim=-1)
        return x * self.cos[place] + torch.cat((b, a), -1) * self.sin[place]


def wrong_sign(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin - b * cos), dim=-1).flatten(-2)


def wrong_sign_written(x: Tensor) -> Tensor:
    cos, sin = waves(x)
    out = torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * cos + x[..., 1::2] * sin
    out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
    return out


def cosines_alone(x: Tensor) -> Tensor:
    own = angles(x.shape[-2]).to(x)
    cos, sin = own.cos(), own.cos()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def sines_alone(x: Tensor) -> Tensor:
    own = angles(x.shape[-2]).to(x)
    cos = own.sin()
    sin = own.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def gated_by_position(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) for each in waves(x))
    return x * cos + x * sin


def swapped_without_sign(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) for each in waves(x))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((b, a), -1) * sin


def tables_of_the_other_kind(x: Tensor) -> Tensor:
    cos, sin = (torch.cat((each, each), -1) for each in waves(x))
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def complex_of_sines(x: Tensor) -> Tensor:
    own = angles(x.shape[-2])
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).double()) * torch.complex(own.sin(), own.sin())
    return torch.view_as_real(turned).flatten(-2).to(x)


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD262"), small_subject(make, width=WIDTH, spec=("bidirectional",)))


HEALTHY = [
    *(halves, backwards, reflected, pairs, written, in_place, rotate_half, with_addcmul, rotate_every_two, as_complex),
    *(partly, scaled, of_yarn, of_xpos, by_two_axes, by_sections, rounded, fading, windowed, reweighed, modulated),
    *(mixing_tokens, by_its_own_phase, of_one_angle, between_two),
    gated_by_position,
]
MIXED = [wrong_sign, wrong_sign_written, swapped_without_sign, tables_of_the_other_kind]
SWINGING = [cosines_alone, sines_alone, complex_of_sines]


@pytest.mark.parametrize("turn", HEALTHY, ids=lambda turn: turn.__name__)
def test_what_is_a_rotation_or_meant_as_none_is_silent(turn: Turn) -> None:
    assert examined(lambda: Attends(turn)).verdict is Verdict.PASS


@pytest.mark.parametrize("turn", MIXED, ids=lambda turn: turn.__name__)
def test_sums_of_channels_that_grow_and_shrink_are_found(turn: Turn) -> None:
    (finding,) = examined(lambda: Attends(turn)).findings
    assert "turning by positions changes lengths: vectors of channels" in finding.message
    assert "times as long at position" in finding.message
    assert finding.where.function == turn.__name__


@pytest.mark.parametrize("turn", SWINGING, ids=lambda turn: turn.__name__)
def test_channels_that_come_and_go_are_found(turn: Turn) -> None:
    (finding,) = examined(lambda: Attends(turn)).findings
    assert "turning by positions changes lengths: channel 0 comes out" in finding.message
    assert finding.where.function == turn.__name__


def test_the_only_kind_of_waves_is_named_and_placed_where_the_other_is_asked_for() -> None:
    (finding,) = examined(lambda: Attends(sines_alone)).findings
    assert finding.message.endswith("; all tables hold sines")
    assert getline(finding.where.file, finding.where.line).strip() == "cos = own.sin()"


def test_tables_in_buffers_are_followed() -> None:
    assert examined(Cached).verdict is Verdict.PASS
    (finding,) = examined(CachedWrong).findings
    assert finding.where.function == "turned"


class OnLinesOfTheirOwn(Attends):
    """Turns queries on one line and keys on another."""

    def __init__(self) -> None:
        super().__init__(wrong_sign)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, D)).permute(2, 0, 3, 1, 4)
        cos, sin = (torch.cat((each, each), -1) for each in waves(q))
        q = q * cos + q.roll(D // 2, -1) * sin
        k = k * cos + k.roll(D // 2, -1) * sin
        return self.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(-2))


def test_queries_and_keys_of_one_function_are_one_finding() -> None:
    (finding,) = examined(OnLinesOfTheirOwn).findings
    assert finding.where.function == "forward"


def of_no_channels(x: Tensor) -> Tensor:
    return x + (x[..., :0] * torch.zeros(x.shape[-2], 0).to(x)).sum(-1, keepdim=True)


@pytest.mark.parametrize("code", ["FWD218", "FWD262"])
def test_tables_without_columns_are_silent(code: str) -> None:
    subject = small_subject(lambda: Attends(lambda x: halves(of_no_channels(x))), width=WIDTH, spec=("bidirectional",))
    assert run_check(registry.load(code), subject).verdict is Verdict.PASS
