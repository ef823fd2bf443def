"""FWD224: what goes wrong in sequences longer than all others is found; what longer ones may do is not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.probes.numerics import long_sequence
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Convolution(nn.Module):
    """Causal, and cheap however long; with an effect on what goes in or comes out."""

    def __init__(self, before=lambda x: x, after=lambda y: y):
        super().__init__()
        self.mix, self.before, self.after = nn.Conv1d(DIM, DIM, 3), before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.mix(pad(self.before(x).mT, (2, 0))).mT)


class Overwriting(Convolution):
    """Clears what it was given, once it is read."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if x.shape[1] > 2048:
            x.data.zero_()
        return y


class Table(nn.Module):
    """Learnt positions, of which `place` says the place in the table."""

    def __init__(self, place: Callable[[Tensor], Tensor], size: int = 2090):
        super().__init__()
        self.table, self.place = nn.Embedding(size, DIM), place
        self.mix = Convolution()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x + self.table(self.place(torch.arange(x.shape[1]))))


class Attention(nn.Module):
    """Of one head whose queries see so many of the newest tokens, counted in blocks by `number`."""

    def __init__(self, number=lambda blocks: blocks):
        super().__init__()
        self.qkv, self.number = nn.Linear(DIM, 3 * DIM), number

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        t = torch.arange(x.shape[1])
        blocks = self.number(t // 16)
        seen = (t[:, None] >= t) & (blocks[:, None] <= t // 16 + 1) & (blocks[:, None] >= t // 16)
        seen[:, 0] = True
        return scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Window(Attention):
    """Of the tokens at the newest distances and the first four, by distances counted by `number`."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        t = torch.arange(x.shape[1])
        distance = t[:, None] - t
        seen = (distance >= 0) & ((self.number(distance // 4) < 5) | (t < 4))
        return scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Running(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class Mean(nn.Linear):
    """The mean of what came before, whatever its order."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).cumsum(1) / torch.arange(1, x.shape[1] + 1).to(x)[:, None]


def examined(make: Callable[[], nn.Module], code: str = "FWD224", **options) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    made = Subject(name="tests", build=build, forward=lambda m, x: m(x), input="embeddings", width=DIM)
    subject = replace(made, packages=("tests",), **{"longest": 1 << 24, **options})
    return run_check(registry.load(code), subject)


def longest(name: str) -> dict[str, int]:
    return {"longest": LONGEST[name]} if name in LONGEST else {}


def longer(than: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: change(x) if x.shape[1] > than else x


FAULTY = {
    "leak": (lambda: Convolution(after=longer(2048, lambda y: y.roll(-1, 1))), "change the output before them"),
    "leak past 4096": (
        lambda: Convolution(after=longer(4096, lambda y: y.roll(-1, 1))),
        "change the output before them",
    ),
    "row of another": (lambda: Convolution(after=longer(4096, lambda y: y.roll(1, 0))), "beside another row"),
    "input": (Overwriting, "overwrites its input"),
    "scale": (lambda: Convolution(after=longer(4096, lambda y: 0.97 * y)), "another output than at the head"),
    "end of a table": (lambda: Table(lambda at: at.clamp(max=2089)), "looked up as 2090 different ones"),
    "table again": (lambda: Table(lambda at: at % 2090), "looked up as 2090 different ones"),
    "cut off": (
        lambda: Convolution(lambda x: torch.cat((x[:, :3000], 0 * x[:, 3000:] + 1), 1)),
        "does not depend on the order of the 40 tokens before it",
    ),
    "distance of eight bits": (
        lambda: Window(lambda distance: distance % 256),
        "the last token depends on tokens more than",
    ),
    "index of eight bits": (
        lambda: Attention(lambda blocks: blocks % 256),
        "does not depend on the order of the 40 tokens before it",
    ),
}


DEAR = "index of eight bits"
LONGEST = {"distance of eight bits": 2100, "window": 2100, "attention": 2100}  # and others what they can


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name == DEAR)) for name in FAULTY])
def test_what_goes_wrong_in_long_sequences_alone_is_found(name: str) -> None:
    make, said = FAULTY[name]
    profile = "full" if name == DEAR else "quick"
    (finding,) = [each for each in examined(make, profile=profile, **longest(name)).findings if each.code == "FWD224"]
    assert said in finding.message
    assert finding.where.file == __file__


HEALTHY = {
    "convolution": Convolution,
    "attention": Attention,
    "window": Window,
    "gru": lambda: Running(DIM, DIM, batch_first=True),
    "mean": lambda: Mean(DIM, DIM),
    "table": lambda: Table(lambda at: at, 1 << 14),
    "table by turns": lambda: Table(lambda at: at % 64, 64),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
def test_healthy_long_sequences_are_no_finding(name: str, seed: int) -> None:
    result = examined(HEALTHY[name], seed=seed, **longest(name))
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), result.reason


def test_values_that_are_not_finite_there_are_a_finding_of_their_own() -> None:
    result = examined(lambda: Convolution(after=lambda y: torch.cat((y[:, :3000], y[:, 3000:] / 0), 1)))
    assert [finding.code for finding in result.findings] == ["NAN101"]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (FAULTY["leak"][0], {"longest": 0}),
        (FAULTY["leak"][0], {"max_length": 40}),
        (lambda: Table(lambda at: at, 2048), {}),
    ],
    ids=["declared", "short", "ends"],
)
def test_no_longer_sequence_is_asked_than_is_served(make: Callable[[], nn.Module], options: dict) -> None:
    result = examined(make, **options)
    assert (result.verdict, result.findings, result.is_required) == (Verdict.SKIP, (), False)


def test_what_there_is_no_time_for_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(long_sequence._NOMINAL_SECONDS, "quick", 1e-6)  # type: ignore[arg-type]
    result = examined(FAULTY["leak"][0])
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)
    assert result.reason.startswith("left out: there is no time for sequences of 2093 tokens and more")


class Stretched(Convolution):
    """Scales by how long a sequence is, beyond a limit; `keeps` where calls of shorter ones are scaled ever after."""

    def __init__(self, limit: int, keeps: bool) -> None:
        super().__init__()
        self.limit, self.keeps, self.scale = limit, keeps, 1.0

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale if x.shape[1] <= self.limit else x.shape[1] / self.limit
        self.scale = scale if self.keeps else self.scale
        return super().forward(x) * scale


@pytest.mark.parametrize(
    ("limit", "keeps", "verdict"), [(300, True, "FAIL"), (2050, True, "FAIL"), (300, False, "PASS")]
)
def test_what_a_far_longer_call_leaves_behind_is_found(limit: int, keeps: bool, verdict: str) -> None:
    assert examined(lambda: Stretched(limit, keeps), "FWD210").verdict == verdict
