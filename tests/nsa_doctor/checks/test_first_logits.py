"""Logits that start far too large are found at the line that makes them so; what starts as a guess is silent."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

VOCABULARY, DIM = 64, 48


class Model(nn.Module):
    """Embeddings, a layer with a residual, a norm, and a head; `after` is what is done to the logits."""

    def __init__(self, after: Callable[[Tensor], Tensor] = lambda logits: logits, norm: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.mix = nn.Linear(DIM, DIM)
        self.norm = nn.LayerNorm(DIM) if norm else nn.Identity()
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)
        self.after = after

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        h = self.norm(x + self.mix(x).tanh())
        return self.after(self.head(h))


class WideHead(Model):
    """Its head is initialised as embeddings are."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.head.weight, std=1.0)


class ByAMethod(Model):
    """`apply` initialises every module, the head by a rule of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        std = DIM**-0.05 if module is self.head else 0.02
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=std, a=-3, b=3)


class Drawn(nn.Module):
    """A head that is a parameter alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, DIM), nn.LayerNorm(DIM)
        self.head = nn.Parameter(torch.randn(DIM, VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.embedding(ids)) @ self.head


def scaled_twice(logits: Tensor) -> Tensor:
    return logits * math.sqrt(DIM) * math.sqrt(DIM)


class OwnSeed(WideHead):
    """Each build draws the same, by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(0)
        nn.init.normal_(self.head.weight, std=1.5, generator=drawn)


class Grown(Model):
    """A residual that grows through layers, and no norm behind them."""

    def __init__(self) -> None:
        super().__init__(norm=False)
        self.layers = nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(6)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * math.sqrt(DIM)
        for layer in self.layers:
            x = x + 3 * layer(x)
        return self.head(x)


class LoudLogSoftmax(WideHead):
    """Its output is log-probabilities."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).log_softmax(-1)


class Padded(Model):
    """Its head has more rows than there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(DIM, VOCABULARY + 8)
        nn.init.normal_(self.head.weight, std=1.0)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)[..., :VOCABULARY]


class Converted(WideHead):
    """It is converted once it is initialised."""

    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16)
        self.float()


class Method:
    """A way to initialise that is no module."""

    def linear(self, layer: nn.Linear, std: float) -> None:
        nn.init.normal_(layer.weight, std=std)

    def head(self, layer: nn.Linear) -> None:
        self.linear(layer, std=DIM**-0.05)


def made_by_a_method() -> nn.Module:
    model = Model()
    Method().head(model.head)
    return model


FAULTY: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "std of one": (WideHead, "nn.init.normal_(self.head.weight, std=1.0)"),
    "by a method": (ByAMethod, "nn.init.trunc_normal_(module.weight, std=std, a=-3, b=3)"),
    "a parameter": (Drawn, "self.head = nn.Parameter(torch.randn(DIM, VOCABULARY))"),
    "scaled twice": (lambda: Model(scaled_twice), "return self.after(self.head(h))"),
    "a seed of its own": (OwnSeed, "nn.init.normal_(self.head.weight, std=1.5, generator=drawn)"),
    "log-probabilities": (LoudLogSoftmax, "nn.init.normal_(self.head.weight, std=1.0)"),
    "converted": (Converted, "nn.init.normal_(self.head.weight, std=1.0)"),
    "by what is no module": (made_by_a_method, "self.linear(layer, std=DIM**-0.05)"),
    "padded": (Padded, "nn.init.normal_(self.head.weight, std=1.0)"),
    "a residual that grows": (Grown, "return self.head(x)"),
}


class Small(Model):
    """As GPT-2 begins."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)


class Tied(Model):
    """Its head holds the embedding's values, as they are by default."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight


class TiedByUse(Model):
    """The embedding is multiplied by where it is used."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embedding(ids))
        return nn.functional.linear(x, self.embedding.weight)


class TiedByRows(Model):
    """Tokens are rows of zeros and a one."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(nn.functional.one_hot(ids, VOCABULARY).to(self.embedding.weight) @ self.embedding.weight)
        return nn.functional.linear(x, self.embedding.weight)


class Zeros(Model):
    """Its head begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)


def of_padding(fill: float) -> Callable[[Tensor], Tensor]:
    return lambda logits: logits.masked_fill(torch.arange(VOCABULARY, device=logits.device) > VOCABULARY - 9, fill)


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "as torch begins": Model,
    "without a norm": lambda: Model(norm=False),
    "as GPT-2": Small,
    "from zero": Zeros,
    "log-probabilities": lambda: Model(lambda logits: logits.log_softmax(-1)),
    "padding at -inf": lambda: Model(of_padding(-math.inf)),
    "padding at -1e9": lambda: Model(of_padding(-1e9)),
    "padding at the least": lambda: Model(of_padding(torch.finfo(torch.float32).min)),
    "capped": lambda: Model(lambda logits: 30 * torch.tanh(logits / 30)),
}


def weight_normed() -> nn.Module:
    model = Model()
    torch.nn.utils.parametrizations.weight_norm(model.head)
    return model


class Loaded(WideHead):
    """Its weights come from a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        state = {name: torch.tensor(value.tolist()) for name, value in self.state_dict().items()}
        self.load_state_dict(state)


class Assigned(WideHead):
    """Values of a checkpoint take the place of its weights."""

    def __init__(self) -> None:
        super().__init__()
        state = {name: torch.tensor(value.tolist()) for name, value in self.state_dict().items()}
        self.load_state_dict(state, assign=True)


class Trained(WideHead):
    """Steps were made while it was built."""

    def __init__(self, kind: Any = torch.optim.AdamW, **options: Any) -> None:
        super().__init__()
        with torch.enable_grad():
            optimizer = kind(self.parameters(), **options)
            self(torch.arange(8)[None]).logsumexp(-1).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


class Backbone(Model):
    """No head: hidden values as wide as the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.down = nn.Embedding(VOCABULARY, VOCABULARY), nn.Linear(VOCABULARY, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = 30 * self.embedding(ids)
        return x + self.down(x)


class Tagger(Model):
    """Its labels are not the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(DIM, 7)
        nn.init.normal_(self.head.weight, std=5.0)


class LoudSoftmax(WideHead):
    """Its output is probabilities."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).softmax(-1)


WITHOUT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "probabilities": (LoudSoftmax, "probabilities"),
    "loaded": (Loaded, "come from elsewhere"),
    "assigned": (Assigned, "come from elsewhere"),
    "trained": (Trained, "come from elsewhere"),
    "trained by foreach": (lambda: Trained(torch.optim.SGD, lr=0.1, foreach=True), "come from elsewhere"),
    "trained by SGD": (lambda: Trained(torch.optim.SGD, lr=0.1, foreach=False), "come from elsewhere"),
    "a backbone": (Backbone, "not what one linear layer gives"),
    "weight norm": (weight_normed, "not what one linear layer gives"),
    "a tagger": (Tagger, "7 channels"),
}


def examined(make: Callable[[], nn.Module], seed: int = 0, **others: Any) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    subject = Subject(
        name="tests",
        build=build,
        forward=lambda module, x: module(x),
        packages=("tests",),
        seed=seed,
        **{"input": "tokens", "width": VOCABULARY, **others},
    )
    return run_check(registry.load("FWD239"), subject)


@pytest.mark.parametrize("name", FAULTY)
def test_logits_that_start_too_large_are_found_at_their_line(name: str) -> None:
    make, line = FAULTY[name]
    (finding,) = examined(make).findings
    assert "times ln(64) = 4.16" in finding.message
    assert Path(finding.where.file).read_text().splitlines()[finding.where.line - 1].strip() == line


def test_the_message_says_how_large_the_weights_are_and_what_is_usual() -> None:
    (finding,) = examined(WideHead).findings
    assert "head.weight has one of 0.996, 6.9 times 1/sqrt(48) = 0.144, and is given values of 1" in finding.message
    assert finding.where.module == "head"


def test_a_factor_behind_the_layer_is_said() -> None:
    (finding,) = examined(FAULTY["scaled twice"][0]).findings
    assert finding.message.endswith("; what it makes is multiplied by 48 after it")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_starts_as_a_guess_is_silent(name: str, seed: int) -> None:
    result = examined(HEALTHY[name], seed)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ()), result.reason


@pytest.mark.parametrize("make", [Tied, TiedByUse, TiedByRows])
def test_a_head_that_is_tied_to_the_embedding_is_a_note(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings, len(result.notes)) == (Verdict.PASS, (), 1)
    assert "embedding.weight, which is tied to the embedding, has one of 1" in result.notes[0]


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_no_fresh_layer_of_logits_is_not_judged(name: str) -> None:
    make, reason = WITHOUT[name]
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.SKIP, ())
    assert reason in result.reason


def test_embeddings_are_not_judged() -> None:
    result = examined(lambda: nn.Linear(DIM, DIM), input="embeddings", width=DIM)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "it takes embeddings, not tokens")
