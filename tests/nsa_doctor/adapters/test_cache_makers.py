"""A cache that neither a method of the module nor a plain constructor makes is found where its own code makes one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.adapters.cache_makers import by_makers
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, TAPS = 8, 4


@dataclass
class TrunkState:
    """The last inputs of each layer, and how many tokens there were."""

    rows: list[Tensor | None]
    position: int = 0

    @classmethod
    def for_model(cls, n_layers: int) -> "TrunkState":
        return cls([None] * n_layers)


class Beyond:
    """As the other; nothing says which."""

    def __init__(self, opened: Any) -> None:
        self.rows, self.position = opened, 0


def make_cache(model: nn.Module) -> TrunkState:
    return TrunkState([None] * len(model.get_submodule("trunk.layers")))  # type: ignore[arg-type]


class Layer(nn.Module):
    """A convolution over the last tokens; `is_short` keeps what one part brings alone, and zeros before it."""

    def __init__(self, is_short: bool = False) -> None:
        super().__init__()
        self.mix, self.is_short = nn.Conv1d(DIM, DIM, TAPS, groups=DIM), is_short

    def forward(self, x: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        rows = x.new_zeros(len(x), TAPS - 1, DIM) if rows is None else rows
        context = torch.cat((rows, x), 1)
        y = x + self.mix(context.transpose(1, 2)).transpose(1, 2).tanh()
        if self.is_short:
            return y, nn.functional.pad(x, (0, 0, TAPS - 1, 0))[:, 1 - TAPS :]  # here
        return y, context[:, 1 - TAPS :]

    def empty_state(self, batch: int) -> dict[str, Any]:
        return {"rows": torch.zeros(batch, TAPS - 1, DIM, dtype=self.mix.weight.dtype)}


class Trunk(nn.Module):
    def __init__(self, is_short: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(is_short) for _ in range(2))
        self.places = nn.Parameter(torch.randn(600, DIM))

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        start = 0 if cache is None else cache.position
        x = x + self.places[start : start + x.shape[1]]
        for index, layer in enumerate(self.layers):
            x, rows = layer(x, None if cache is None else cache.rows[index])
            if cache is not None:
                cache.rows[index] = rows
        if cache is not None:
            cache.position = start + x.shape[1]
        return x


class MakingTrunk(Trunk):
    def new_cache(self) -> TrunkState:
        return TrunkState([None] * len(self.layers))


class Model(nn.Module):
    """Of a trunk that its caller's cache is handed on to."""

    def __init__(self, trunk: Callable[[bool], Trunk] = MakingTrunk, is_short: bool = False) -> None:
        super().__init__()
        self.trunk, self.out = trunk(is_short), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, style: Tensor | None = None, cache: Any = None) -> Any:
        return self.out(self.trunk(x, cache))


class OfStreams(Model):
    """Its answer has a further axis."""

    def forward(self, x: Tensor, style: Tensor | None = None, cache: Any = None) -> Any:
        return self.out(self.trunk(x, cache)).unflatten(-1, (2, -1))


class Written(Model):
    """Its own `generate` alone says what a cache is made of."""

    def forward(self, x: Tensor, style: Tensor | None = None, cache: Beyond | None = None) -> Any:
        return self.out(self.trunk(x, cache))

    def guided(self, x: Tensor, scale: float, cache: Beyond) -> Tensor:
        return self(x, None, cache) * scale

    def generate(self, x: Tensor, count: int) -> Tensor:
        number = len(self.trunk.layers)
        cache = Beyond([None for _ in range(number)])
        for _ in range(count):
            x = self.guided(x, 1.0, cache)
        return x


class OfLayers(nn.Module):
    """A list of a state of each of its layers."""

    def __init__(self, is_short: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(is_short) for _ in range(2))

    def forward(self, x: Tensor, states: Any = None) -> Tensor:
        for index, layer in enumerate(self.layers):
            x, rows = layer(x, None if states is None else states[index]["rows"])
            if states is not None:
                states[index]["rows"] = rows
        return x


DONE: list[str] = []


def open_cache(path: str = "somewhere") -> TrunkState:
    DONE.append(path)
    return TrunkState([None, None])


def connected() -> list[Tensor | None]:
    DONE.append("connected")
    return [None, None]


class Store:
    """What it keeps, it fetches."""

    def fetched(self) -> TrunkState:
        return open_cache("fetched")


STORE = Store()


class DoesMore(Model):
    """Its code makes caches in ways that do more than that."""

    def opens(self, x: Tensor) -> Tensor:
        cache = open_cache()
        return self(x, cache=cache)  # type: ignore[no-any-return]

    def connects(self, x: Tensor) -> Tensor:
        rows = connected()
        return self(x, cache=Beyond(rows))  # type: ignore[no-any-return]

    def trains(self, x: Tensor) -> Tensor:
        return self(x, cache=self.train_step(x))  # type: ignore[no-any-return]

    def fetches(self, x: Tensor) -> Tensor:
        return self(x, cache=[STORE.fetched() for _ in range(2)])  # type: ignore[no-any-return]

    def writes(self, x: Tensor) -> Tensor:
        return self(x, cache=[open("written", "w")])  # type: ignore[no-any-return]

    def deferred(self, x: Tensor) -> Tensor:
        return self(x, cache=[(lambda: open_cache("deferred"))()])  # type: ignore[no-any-return]

    def train_step(self, x: Tensor) -> TrunkState:
        DONE.append("trained")
        return TrunkState([None, None])


class SlowCache:
    """Cannot be made."""

    def __init__(self) -> None:
        DONE.append("slow")
        raise RuntimeError("no such thing here")


class HasASlowOne(Model):
    def opens(self, x: Tensor) -> Tensor:
        return self(x, cache=SlowCache())  # type: ignore[no-any-return]


def subject_of(make: Callable[[], nn.Module]) -> Subject:
    def factory() -> nn.Module:
        torch.manual_seed(0)
        return make()

    return adapt(SubjectRequest(spec="tests:make", input="embeddings", width=DIM, explore=True), factory)  # type: ignore[arg-type]


FORMS = {
    "a part": (Model, "cache=trunk.new_cache()"),
    "further axes": (OfStreams, "cache=trunk.new_cache()"),
    "a function": (lambda is_short=False: Model(Trunk, is_short), "cache=make_cache(model)"),
    "its own code": (lambda is_short=False: Written(Trunk, is_short), "cache=Beyond("),
    "each layer": (OfLayers, "states=empty_state(batch) of each of layers"),
}
SHORT = {name: (lambda make=make: make(is_short=True)) for name, (make, _) in FORMS.items()}


@pytest.mark.parametrize(("make", "words"), FORMS.values(), ids=FORMS)
def test_the_cache_is_found(make: Callable[[], nn.Module], words: str) -> None:
    subject = subject_of(make)
    assert any(words in note for note in subject.notes), subject.notes
    for code in ("DEC101", "DEC102", "DEC110"):
        found = run_check(registry.load(code), subject)
        assert (found.verdict, found.findings) == (Verdict.PASS, ()), (code, found)


@pytest.mark.parametrize("make", SHORT.values(), ids=SHORT)
def test_a_state_that_forgets_is_found(make: Callable[[], nn.Module]) -> None:
    (finding,) = run_check(registry.load("DEC101"), subject_of(make)).findings
    assert finding.where.module.endswith(("layers.0", "layers.0.mix"))


def test_a_class_may_make_it_by_a_method_or_of_a_list() -> None:
    module = Model(Trunk)
    made = {words: start(module, torch.zeros(1, 1)) for words, start in by_makers(module, "cache", ("tests",))}
    assert made["TrunkState.for_model(n_layers)"] == made["TrunkState(rows)"] == TrunkState([None, None])


def test_what_does_more_than_make_a_cache_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    DONE.clear()
    module = DoesMore(Trunk)
    ways = [way for way in by_makers(module, "cache", ("tests",)) if way[0].startswith(("open", "Beyond", "self", "["))]
    assert len(ways) == 6, [words for words, _ in ways]
    for words, start in ways:
        with pytest.raises(LookupError):
            start(module, torch.zeros(1, 1, DIM))
        assert words
    assert DONE == []
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_made_is_tried_once() -> None:
    DONE.clear()
    module = HasASlowOne(Trunk)
    (start,) = (start for words, start in by_makers(module, "cache", ("tests",)) if words == "SlowCache()")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no such thing here"):
            start(module, torch.zeros(1, 1, DIM))
    assert DONE == ["slow"]
