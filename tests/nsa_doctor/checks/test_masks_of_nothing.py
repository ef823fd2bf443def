"""A mask of padding that is made of what is never zero is found where it is compared; one that hides zeros is not."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, VOCABULARY = 8, 21


class Embeds(nn.Module):
    """Attention among embedded rows, of which those that are zero are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Linear(DIM, DIM)

    def attend(self, x: Tensor, hidden: Tensor) -> Tensor:
        scores = (x @ x.mT).masked_fill(hidden[:, None], torch.finfo(x.dtype).min)
        return x + scores.softmax(-1) @ x

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        hidden = ~x.sum(dim=2).bool()  # here
        return self.attend(x, hidden)


class BehindPositions(Embeds):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(DIM, DIM, bias=False)
        self.positions = nn.Parameter(torch.randn(64, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.positions[: x.shape[1]]
        hidden = x.abs().sum(-1) == 0  # here
        return self.attend(x, hidden)


class OfOneChannel(Embeds):
    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        keep = x[..., 0] != 0  # here
        scores = torch.where(keep[:, None], x @ x.mT, -1e9)
        return x + scores.softmax(-1) @ x


class ByTorch(Embeds):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        hidden = x.abs().amax(-1) == 0  # here
        return x + self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


class OfIds(Embeds):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM, padding_idx=padding)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        hidden = x.abs().sum(-1) == 0  # here
        return self.attend(x, hidden)


class OfTheInput(Embeds):
    def forward(self, x: Tensor) -> Tensor:
        hidden = ~x.sum(dim=2).bool()
        return self.attend(self.embed(x), hidden)


class WithoutABias(Embeds):
    """Zeros stay zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(DIM, DIM, bias=False)


class OfARowOfZeros(OfIds):
    """The row of the table that stands for padding is zero."""

    def __init__(self) -> None:
        super().__init__(padding=3)


class DividesByNoZero(Embeds):
    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        size = x.norm(dim=-1)
        x = x / torch.where(size == 0, 1.0, size)[..., None]
        return self.attend(x, torch.zeros(x.shape[:2], dtype=torch.bool))


class CountsWhatIsActive(Embeds):
    """A measure of how many tokens are active, which hides nothing from anything."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        active = (x.sum(-1) != 0).to(x.dtype).mean(1)
        return self.attend(x, torch.zeros(x.shape[:2], dtype=torch.bool)) * active[:, None, None]


class OfScores(Embeds):
    """What is compared is of tokens and tokens: of scores that a relu may make zero."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        scores = (x @ x.mT).relu()
        return x + scores.masked_fill(scores == 0, -1e9).softmax(-1) @ x


class ShutByAGate(Embeds):
    """Tokens whose gate is shut are no keys; on these weights none is."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.nn.functional.softshrink(self.gate(x)[..., 0] + 9, 0.1)
        return self.attend(x, gate == 0) * gate.mean(1)[:, None, None]


class OfDegrees(Embeds):
    """Nodes without an edge are read by none."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        edges = (x @ x.mT + 9).relu()
        return self.attend(x, edges.sum(-1) == 0)


FAULTY = [Embeds, BehindPositions, OfOneChannel, ByTorch, OfIds]
HEALTHY = [
    OfTheInput,
    WithoutABias,
    OfARowOfZeros,
    DividesByNoZero,
    CountsWhatIsActive,
    OfScores,
    ShutByAGate,
    OfDegrees,
]


def examined(kind: Callable[[], nn.Module]) -> Result:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind()

    is_of_ids = isinstance(make(), OfIds)
    request = SubjectRequest(
        spec="x:y",
        input="tokens" if is_of_ids else "embeddings",
        width=VOCABULARY if is_of_ids else DIM,
        lengths=(16,),
        explore=True,
    )
    return run_check(registry.load("FWD282"), adapt(request, make))


@pytest.mark.parametrize("kind", FAULTY)
def test_a_mask_that_hides_nothing_is_found_where_it_is_made(kind: type[nn.Module]) -> None:
    (finding,) = examined(kind).findings
    lines, start = inspect.getsourcelines(kind.forward)
    assert finding.where.line == start + next(at for at, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_mask_that_hides_zeros_and_what_is_no_mask_are_silent(kind: type[nn.Module]) -> None:
    result = examined(kind)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
