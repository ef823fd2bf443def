"""A number that a constructor is given and nothing follows is found; what waits for another setting is a note."""

import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8
PACKAGE = """
from torch import nn


class Turned(nn.Module):
    def __init__(self, base: float = 10000.0, learned: bool = True) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        if not learned:
            self.mix.weight.data.mul_(base)

    def forward(self, x):
        return self.mix(x)
"""


class Scaled(nn.Module):
    """Weighs its answer as it is asked to, or forgets to."""

    def __init__(self, scale: float = 1.0, *, forgets: bool = False, dropout: float = 0.0) -> None:  # here
        super().__init__()
        self.mix, self.forgets = nn.Linear(DIM, DIM), forgets
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) if self.forgets else self.scale * self.mix(x)


class Kept(nn.Module):
    """Keeps a number that nothing reads."""

    def __init__(self, scale: float = 1.0) -> None:  # here
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class OfWeights(nn.Module):
    """Draws its weights by a number."""

    def __init__(self, spread: float = 1.0) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        nn.init.normal_(self.mix.weight, std=spread)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class OfGradients(nn.Module):
    """Weighs gradients alone."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.mix, self.share = nn.Linear(DIM, DIM), share

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x)
        return y * self.share + (y * (1 - self.share)).detach()


def examined(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD238"), embedding_subject(make))


@pytest.fixture
def other_package(tmp_path: Path) -> Iterator[type[nn.Module]]:
    """A class of another package than this test's."""
    (tmp_path / "of_others.py").write_text(PACKAGE, encoding="utf-8")
    sys.path.insert(0, str(tmp_path))
    try:
        from of_others import Turned  # type: ignore[import-not-found]

        yield Turned
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("of_others", None)
        linecache.checkcache()


def test_a_number_that_is_only_kept_is_found_at_its_constructor() -> None:
    (finding,) = examined(lambda: Kept(scale=0.5)).findings
    assert finding.message == "Kept is given scale=0.5, and nothing that it computes is another with 1"
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)


def test_a_number_that_another_package_gives_is_found(other_package: type[nn.Module]) -> None:
    Turned = other_package
    (finding,) = examined(lambda: Turned(base=100.0)).findings
    assert finding.message.startswith("Turned is given base=100, and nothing")


def test_what_a_whole_configuration_gives_is_a_note(other_package: type[nn.Module]) -> None:
    settings = {"base": 100.0}
    result = examined(lambda: other_package(**settings))
    assert result.verdict is Verdict.PASS
    assert any("another setting may decide that" in note for note in result.notes)


def test_a_number_that_waits_for_another_setting_is_a_note() -> None:
    result = examined(lambda: Scaled(scale=0.5, forgets=True))
    assert result.verdict is Verdict.PASS
    assert any("another setting may decide that" in note for note in result.notes)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Scaled(scale=0.5), id="it scales"),
        pytest.param(lambda: Scaled(dropout=0.1), id="a share of dropout"),
        pytest.param(lambda: Kept(scale=1.0), id="its default"),
        pytest.param(lambda: OfWeights(spread=0.5), id="weights are drawn by it"),
        pytest.param(lambda: OfGradients(share=0.5), id="gradients are weighed by it"),
    ],
)
def test_a_number_that_something_follows_is_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert result.verdict is Verdict.PASS, result.findings
    assert not result.notes
