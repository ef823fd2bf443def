"""Channels of every pair of tokens may cost the cube of the length; scores of attention may not."""

import pytest
from torch import Tensor, einsum, nn, stack

from nsa_doctor.core import registry
from nsa_doctor.probes.cost.pairs import keeps_pairs
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM, PAIR = 8, 4


class Triangles(nn.Module):
    """Each pair is made of the pairs that the third token has with both."""

    def __init__(self, *, has_norm: bool, by_rows: bool = False) -> None:
        super().__init__()
        self.by_rows = by_rows
        self.left, self.right, self.back = nn.Linear(DIM, PAIR), nn.Linear(DIM, PAIR), nn.Linear(PAIR, DIM)
        self.norm = nn.LayerNorm(PAIR) if has_norm else nn.Identity()
        self.one, self.other = nn.Linear(PAIR, PAIR), nn.Linear(PAIR, PAIR)

    def forward(self, x: Tensor) -> Tensor:
        pairs = self.norm(self.left(x)[:, :, None] + self.right(x)[:, None])
        a, b = self.one(pairs), self.other(pairs)
        if self.by_rows:  # as memory allows
            pairs = stack([(row[:, None] * b).mean(2) for row in a.unbind(1)], dim=1)
        else:
            pairs = (a[:, :, None] * b[:, None]).mean(3)
        output: Tensor = x + self.back(pairs.mean(2))
        return output


class TalkingHeads(nn.Module):
    """Scores of heads go through a linear layer, and the values of every three tokens are laid out by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.mix = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(2, 2)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        q, k = (each.unflatten(-1, (2, -1)) for each in (self.q(x), self.k(x)))
        weights = self.mix(einsum("bihd,bjhd->bijh", q, k)).softmax(2).mean(-1)
        spread = weights[:, :, :, None] * weights[:, None]
        output: Tensor = x + spread.mean(2) @ x
        return output


@pytest.mark.parametrize("code", ["PRF201", "PRF202"])
def test_the_cube_is_allowed_where_pairs_have_channels(code: str) -> None:
    assert run_check(registry.load(code), embedding_subject(lambda: Triangles(has_norm=True))).findings == ()


def test_the_cube_of_attention_is_found() -> None:
    assert run_check(registry.load("PRF201"), embedding_subject(TalkingHeads)).findings


def test_a_norm_and_a_layer_of_pairs_make_them_channels() -> None:
    asked = (TalkingHeads, lambda: Triangles(has_norm=False), lambda: Triangles(has_norm=True))
    assert [keeps_pairs(built(embedding_subject(make))) for make in asked] == [False, False, True]


@pytest.mark.parametrize("has_norm", [True, False])
def test_a_loop_over_the_rows_of_pairs_is_a_note(has_norm: bool) -> None:
    result = run_check(registry.load("PRF101"), embedding_subject(lambda: Triangles(has_norm=has_norm, by_rows=True)))
    assert (len(result.findings), len(result.notes)) == ((0, 1) if has_norm else (1, 0)), result
