"""Equal tokens that come out larger and larger are a finding; a sum that grows with their number is none."""

import linecache
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

WIDTH = 8
BLOCK = 16


class Attention(nn.Module):
    """Projections around a way to mix tokens."""

    def __init__(self, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.project, self.out, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), mix

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return self.out(self.mix(q, k, v))


class Recurrence(Attention):
    """The same by the name of a state."""


class Mixer(Attention):
    """The same by a name that promises nothing."""


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    return (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def running_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.cumsum(1)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q.exp(), k.exp()
    states = (k[..., None] * v[..., None, :]).cumsum(1)
    total = (q * k.cumsum(1)).sum(-1, keepdim=True)
    return (q[..., None, :] @ states).squeeze(-2) / total


def multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q.exp(), k.exp()
    states = (k[..., None] * v[..., None, :]).cumsum(1)
    total = (q * k.cumsum(1)).sum(-1, keepdim=True)
    return (q[..., None, :] @ states).squeeze(-2) * total  # here


def multiplied_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.unflatten(1, (-1, BLOCK)) for each in (q.exp(), k.exp(), v))
    states = (k.mT @ v).cumsum(1)
    total = (q * k.sum(2).cumsum(1)[:, :, None]).sum(-1, keepdim=True)
    return (q @ states * total).flatten(1, 2)  # here


def heads_multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Numbers of one dimension, and channels of a size that divides the length, grow as well."""
    ramp = torch.arange(q.shape[1], dtype=q.dtype) ** 2
    rates = 100.0 ** torch.arange(16, dtype=q.dtype)
    return multiplied(q, k, v) + 0 * ramp[:, None] * rates.sum()


def sum_of_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.cumsum(1).cumsum(1)


def gated_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q * (k * v.cumsum(1)).cumsum(1)) * 2


class Distance(nn.Module):
    """A function of positions alone."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=x.dtype)
        return places.square()[None, :, None].expand(len(x), -1, 3)


class DistanceAttention(Attention):
    """An attention beside which a bias grows that is made of positions."""

    def __init__(self, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__(mix)
        self.attention_bias = Distance()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * self.attention_bias(x)[..., :1]


class DecayedAttention(Attention):
    """An attention within which queries grow as fast as keys shrink."""

    def __init__(self, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__(mix)
        self.attention_decay = Decay()

    def forward(self, x: Tensor) -> Tensor:
        grown, shrunk = self.attention_decay(x)
        return super().forward(grown * shrunk)


class Decay(nn.Module):
    """Factors of a decay, and their inverse."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        factors = 1.03 ** torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        return x * factors, (x * 0 + 1) / factors


def state_with(decay: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, states = torch.zeros_like(v[:, 0]), []
        for token in v.unbind(1):
            state = decay * state + token
            states.append(state)
        return torch.stack(states, 1)

    return mix


def examined(
    mix: Callable[[Tensor, Tensor, Tensor], Tensor],
    is_normed: bool = False,
    longest: int = 2048,
    kind: type[Attention] = Attention,
) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(kind(mix), nn.LayerNorm(WIDTH)) if is_normed else kind(mix)

    subject = Subject(
        name="tests",
        build=build,
        forward=lambda module, x: module(x),
        input="embeddings",
        width=WIDTH,
        max_length=longest,
        packages=("tests",),
    )
    return run_check(registry.load("FWD248"), subject)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("mix", [multiplied, multiplied_in_blocks, heads_multiplied])
def test_a_sum_that_is_multiplied_by_what_divides_it_is_found_behind_a_norm_too(
    mix: Callable[[Tensor, Tensor, Tensor], Tensor], is_normed: bool
) -> None:
    (finding,) = examined(mix, is_normed).findings
    assert "tokens the output of Attention grows by the power 2 of the position" in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)
    assert finding.where.module == ("0" if is_normed else "")


def test_a_state_that_grows_is_found() -> None:
    (finding,) = examined(state_with(1.02), kind=Recurrence).findings
    assert finding.evidence["power"] > 1
    assert len(examined(state_with(4.0), kind=Recurrence).findings) == 1


@pytest.mark.parametrize("mix", [sum_of_sums, multiplied, gated_twice])
@pytest.mark.parametrize("kind", [Mixer, Recurrence])
def test_what_promises_nothing_is_a_note(
    mix: Callable[[Tensor, Tensor, Tensor], Tensor], kind: type[Attention]
) -> None:
    result = examined(mix, kind=kind)
    assert result.verdict is Verdict.PASS
    assert len(result.notes) == 1


@pytest.mark.parametrize("mix", [attention, running_sum, linear_attention, state_with(0.9), state_with(0.999)])
def test_a_mean_a_sum_and_a_state_that_forgets_are_silent(mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    result = examined(mix)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize("kind", [DistanceAttention, DecayedAttention])
def test_functions_of_the_position_and_a_decay_beside_its_inverse_are_silent(kind: type[Attention]) -> None:
    result = examined(attention, kind=kind)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_of_few_tokens_nothing_is_said() -> None:
    assert examined(multiplied, longest=48).verdict is Verdict.SKIP
