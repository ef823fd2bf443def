"""Output channels that nothing reads are found, of whatever layer; what is zero for another reason is silent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

WIDTH = 8


class Modulated(nn.Module):
    """Two parts, each with a scale and a gate; the second part may read another gate."""

    def __init__(self, second: int = 3) -> None:
        super().__init__()
        self.to_gates, self.one, self.other = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(8, 8)
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        parts = self.to_gates(x.mean(1, keepdim=True)).chunk(4, -1)
        x = x + parts[1] * self.one(x * (1 + parts[0])).tanh()
        return x + parts[self.second] * self.other(x * (1 + parts[2])).tanh()


class Unpacked(Modulated):
    def forward(self, x: Tensor) -> Tensor:
        scale, gate, other_scale, other_gate = self.to_gates(x.mean(1, keepdim=True)).chunk(4, -1)  # noqa: RUF059 - the fault
        x = x + gate * self.one(x * (1 + scale)).tanh()
        return x + gate * self.other(x * (1 + other_scale)).tanh()


class EvenTwice(nn.Module):
    """Pairs of channels, of which the even ones are read for the odd ones."""

    def __init__(self, odd: int = 0) -> None:
        super().__init__()
        self.layer, self.odd = nn.Linear(WIDTH, 2 * WIDTH), odd

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x)
        return made[..., 0::2] * made[..., self.odd :: 2].tanh()


class Vocabulary(nn.Module):
    """Logits of a vocabulary that was rounded up to eight."""

    def __init__(self, hides: bool = False) -> None:
        super().__init__()
        self.layer, self.head, self.hides = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), hides

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.layer(x).tanh())
        if self.hides:
            return torch.where(torch.arange(WIDTH, device=x.device) < 5, logits, -1e4)
        return logits[..., :5]


class Tagged(Vocabulary):
    """One tag in the middle is never asked for."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).tanh())[..., [0, 1, 2, 4, 5, 6, 7]]


class Shut(nn.Module):
    """Channels that a threshold shuts for most inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        nn.init.constant_(self.up.bias, -1.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Chosen(nn.Module):
    """The better of four experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 4), nn.Parameter(torch.randn(4, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight, index = self.router(x).softmax(-1).max(-1)
        return x + weight[..., None] * (x.unsqueeze(-2) @ self.experts[index]).squeeze(-2)


class Cut(nn.Module):
    """A convolution half of whose channels go unread."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(WIDTH, 2 * WIDTH, 3, padding=1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.conv(x.mT)[:, :WIDTH].mT.tanh())


class Gates(nn.Module):
    """Two gates, one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.one, self.other = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gates(x)[..., :1]
        x = x + gate * self.one(x).tanh()
        return x + gate * self.other(x).tanh()


class OwnLinear(nn.Linear):
    """Of a class of its own."""


class OfItsOwn(EvenTwice):
    def __init__(self) -> None:
        super().__init__()
        self.layer = OwnLinear(WIDTH, 2 * WIDTH)


class Last(nn.Module):
    """Blocks, of which the last asks for half of what its projection gives."""

    def __init__(self) -> None:
        super().__init__()
        self.ada = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.ada[0](x).chunk(2, -1)
        scale_last, _ = self.ada[1](x * scale + shift).chunk(2, -1)
        return self.out(x * scale_last)


class Horizon(nn.Module):
    """Four steps of eight that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.out = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.steps(x).unflatten(-1, (8, WIDTH))[..., :3, :].tanh().sum(-2))


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("GRD224"), small_subject(make, width=WIDTH, is_width_kept=False))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Modulated(1), "8 of the 32 output channels of to_gates (24 to 31)"),
        (Unpacked, "nothing reads other_gate"),
        (EvenTwice, "8 of the 16 output channels of layer (1, 3, 5, …)"),
        (Cut, "8 of the 16 output channels of conv (8 to 15)"),
        (Gates, "1 of the 2 output channels of gates (1)"),
        (OfItsOwn, "8 of the 16 output channels of layer"),
    ],
    ids=["by number", "by name", "every second one", "a convolution", "one gate", "a class of its own"],
)
def test_channels_that_nothing_reads_are_found(make: Callable[[], nn.Module], says: str) -> None:
    (finding,) = examined(make).findings
    assert says in finding.message
    assert finding.where.file == __file__


@pytest.mark.parametrize(
    "make",
    [Modulated, lambda: EvenTwice(1), Vocabulary, lambda: Vocabulary(hides=True), Tagged, Shut, Chosen],
    ids=["all gates", "both of a pair", "cut off", "overwritten", "in the middle", "shut", "chosen"],
)
def test_what_is_read_is_silent(make: Callable[[], nn.Module]) -> None:
    assert examined(make).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("make", "words"),
    [(Last, "8 of the 16 output channels of ada.1 (8 to 15)"), (Horizon, "40 of the 64 output channels of steps")],
)
def test_what_may_be_meant_is_a_note(make: Callable[[], nn.Module], words: str) -> None:
    result = examined(make)
    assert result.findings == ()
    assert any(words in note for note in result.notes)
