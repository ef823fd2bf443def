"""A part that lays tokens out anew is the only way into a stage as it is meant to be; a bare sublayer is not."""

import pytest
from torch import Tensor, cat, einsum, eye, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM, STREAMS = 8, 3


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix((x @ x.mT).softmax(-1) @ x)


class _Stage(nn.Module):
    """Channels are made anew, then attention with its residual."""

    def __init__(self, width: int, *, has_residual: bool) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(width, DIM), _Attention()
        self.out, self.has_residual = nn.Linear(DIM, 2 * DIM), has_residual

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attention(x) if self.has_residual else self.attention(x)
        return self.out(x)


def stages(*, has_residual: bool) -> nn.Module:
    first, second = (_Stage(width, has_residual=has_residual) for width in (2 * DIM, 2 * DIM))
    return nn.Sequential(nn.Linear(DIM, 2 * DIM), first, second, nn.Linear(2 * DIM, DIM))


@pytest.mark.parametrize("has_residual", [True, False])
def test_a_stage_that_changes_the_channels_is_asked_for_its_sublayers(has_residual: bool) -> None:
    result = run_check(registry.load("FWD232"), embedding_subject(lambda: stages(has_residual=has_residual)))
    assert [finding.evidence["part"] for finding in result.findings] == ["attention"] * (not has_residual)


class _OfLists(nn.Module):
    """Two lists side by side, of parts of layers and of their norms; the second layer joins what the first had."""

    def __init__(self, *, has_residual: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.ModuleList([join]), _Attention(), nn.Linear(DIM, DIM)])
            for join in (nn.Identity(), nn.Linear(2 * DIM, DIM))
        )
        self.norms = nn.ModuleList(
            nn.ModuleList([nn.ModuleList([nn.LayerNorm(DIM)]), nn.LayerNorm(DIM)]) for _ in range(2)
        )
        self.has_residual = has_residual

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for ((join,), attention, out), ((first,), second) in zip(self.layers, self.norms, strict=True):
            x = join(cat((x, kept.pop()), -1) if kept else x)
            x = x + attention(first(x)) if self.has_residual else attention(first(x))
            kept.append(x)
            x = x + out(second(x)).tanh()
        return x


@pytest.mark.parametrize("has_residual", [True, False])
def test_layers_that_are_lists_are_asked_for_what_is_called(has_residual: bool) -> None:
    result = run_check(registry.load("FWD232"), embedding_subject(lambda: _OfLists(has_residual=has_residual)))
    assert [finding.evidence["part"] for finding in result.findings] == ["1"] * (not has_residual)


class _Streams(nn.Module):
    """Around a part: streams of the residual that a matrix mixes, and the part's answer added to all of them."""

    def __init__(self, part: nn.Module, *, has_residual: bool) -> None:
        super().__init__()
        self.part, self.residual = part, nn.Parameter(eye(STREAMS) + 0.1)
        self.has_residual = has_residual

    def forward(self, streams: Tensor) -> Tensor:
        answer = self.part(streams.mean(0)).expand_as(streams)
        return answer + einsum("st,tbnd->sbnd", self.residual, streams) if self.has_residual else answer


class _Hyper(nn.Module):
    def __init__(self, *, has_residual: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([_Streams(part, has_residual=has_residual) for part in (_Attention(), nn.Linear(DIM, DIM))])
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        streams = x.expand(STREAMS, *x.shape)
        for attention, out in self.layers:
            streams = out(attention(streams))
        return streams.sum(0)


@pytest.mark.parametrize("has_residual", [True, False])
def test_the_matrix_that_mixes_streams_of_the_residual_is_no_part(has_residual: bool) -> None:
    result = run_check(registry.load("FWD232"), embedding_subject(lambda: _Hyper(has_residual=has_residual)))
    assert [finding.evidence["part"] for finding in result.findings] == ["0"] * (not has_residual)
