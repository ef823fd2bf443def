"""A row of which a mask hides every token: NaN for queries that are no padding is found, and for itself is a note."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, NUM_POINTS = 8, 5


class Reads(nn.Module):
    """Learned points read a set, and its elements read the points."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(NUM_POINTS, DIM))
        self.q, self.kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM)

    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        scores = scores.masked_fill(~real[:, None], -torch.inf)  # here
        return scores.softmax(-1)

    def read(self, queries: Tensor, x: Tensor, real: Tensor | None) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        scores = self.q(queries) @ k.mT / DIM**0.5
        return (scores.softmax(-1) if real is None else self.weights(scores, real)) @ v

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        points = self.read(self.points.expand(len(x), -1, -1), x, None if mask is None else mask.bool())
        return x + self.read(x, points, None)


class InPlace(Reads):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        scores.masked_fill_(~real[:, None], float("-inf"))  # here
        return torch.softmax(scores, dim=-1)


class ByABias(Reads):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        bias = torch.zeros_like(scores).masked_fill(~real[:, None], -torch.inf)  # here
        scores = scores + bias
        return scores.softmax(-1)


class Chosen(Reads):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        scores = torch.where(real[:, None], scores, -torch.inf)  # here
        return scores.softmax(-1)


class Cleans(Reads):
    """Forward is finite; backward is not, as nothing stops it at the bias."""

    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        bias = torch.zeros_like(scores[:, :1]).masked_fill(~real[:, None], -torch.inf)  # here
        return (scores + bias).softmax(-1).nan_to_num(0.0)


class AmongTokens(Reads):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x + self.read(x, x, None if mask is None else mask.bool())


class CleansAmongTokens(AmongTokens):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        scores = scores + real[:, None].to(scores.dtype).log()  # here
        return scores.softmax(-1).masked_fill(~real[:, None], 0.0)


class CleansWhatIsFilled(Reads):
    """Of what is filled, and not added, nothing goes back."""

    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real[:, None], -torch.inf).softmax(-1).nan_to_num(0.0)


class SumsUp(Reads):
    """One summary of the set, which may be promised to have an element."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.q(x).sum(-1)
        scores = scores if mask is None else scores.masked_fill(~mask.bool(), -torch.inf)
        return x + (scores.softmax(-1)[..., None] * self.q(x)).sum(1, keepdim=True)


class ByLengths(Reads):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x, None if lengths is None else torch.arange(x.shape[1]) < lengths[:, None])


class OfTheLeast(Reads):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min).softmax(-1)


class ShowsAllInPlaceOfNone(Reads):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        real = real | ~real.any(-1, keepdim=True)
        return scores.masked_fill(~real[:, None], -torch.inf).softmax(-1)


class WithASink(Reads):
    """A key that is always seen, and says nothing."""

    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        sink = torch.zeros_like(scores[..., :1])
        scores = torch.cat((scores.masked_fill(~real[:, None], -torch.inf), sink), -1)
        return scores.softmax(-1)[..., :-1]


class ByExponentials(Reads):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        shares = scores.exp() * real[:, None]
        return shares / shares.sum(-1, keepdim=True).clamp(min=1e-9)


class Fused(Reads):
    """Torch's own gives zeros for what sees nothing."""

    def read(self, queries: Tensor, x: Tensor, real: Tensor | None) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        return scaled_dot_product_attention(self.q(queries), k, v, None if real is None else real[:, None])


class Refuses(Reads):
    def weights(self, scores: Tensor, real: Tensor) -> Tensor:
        if not real.any(-1).all():
            raise ValueError("a set has to have an element")
        return super().weights(scores, real)


FAULTY = [Reads, InPlace, ByABias, Chosen, Cleans, CleansAmongTokens]
HEALTHY = [CleansWhatIsFilled, OfTheLeast, ShowsAllInPlaceOfNone, WithASink, ByExponentials, Fused, Refuses]


def examined(kind: Callable[[], nn.Module]) -> Result:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind()

    request = SubjectRequest(spec="x:y", input="embeddings", width=DIM, lengths=(16,), explore=True)
    subject = adapt(request, make)
    assert subject.offers("padded")
    return run_check(registry.load("NAN106"), subject)


@pytest.mark.parametrize("kind", FAULTY)
def test_a_softmax_over_nothing_is_found_where_its_scores_are_hidden(kind: type[Reads]) -> None:
    (finding,) = examined(kind).findings
    lines, start = inspect.getsourcelines(kind.weights)
    assert finding.where.line == start + next(at for at, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_row_that_is_served_or_refused_is_silent(kind: type[Reads]) -> None:
    result = examined(kind)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


@pytest.mark.parametrize(
    ("kind", "who"),
    [(AmongTokens, "its own tokens"), (SumsUp, "queries that are no padding"), (ByLengths, "queries that")],
)
def test_rows_that_nobody_may_give_are_a_note(kind: type[Reads], who: str) -> None:
    result = examined(kind)
    assert not result.findings
    assert f"gives {who}" in result.notes[0]
