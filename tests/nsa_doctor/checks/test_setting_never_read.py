"""A setting that a constructor never reads is found; one that has a use, or is said to have none, is not."""

import linecache
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Layer(nn.Module):
    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.mix, self.window = nn.Linear(DIM, DIM), window

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Stack(nn.Module):
    """Layers that are made without what was asked for."""

    def __init__(self, depth: int = 1, window: int | None = None) -> None:  # here
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Refused(Stack):
    def __init__(self, causal: bool = True, rotary: bool = False, keeps: bool = False) -> None:  # here
        assert not (keeps and rotary)
        if keeps and not causal:
            raise ValueError("not both")
        super().__init__()


class HandedOn(Stack):
    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(window))


class KeptBySuper(Stack):
    def __init__(self, window: int | None = None, **more: Any) -> None:
        settings = {name: value for name, value in locals().items() if name in ("window", "depth")}
        super().__init__(depth=1 + len(settings) * 0)


class SaidToBeUnused(Stack):
    def __init__(self, window: int | None = None) -> None:  # window: unused, for the interface
        super().__init__()


class ReadLater(Stack):
    """Its settings are kept by something that looks at the frame."""

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.kept = {"window": 3}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.kept["window"]


class Warned(Stack):
    def __init__(self, window: int | None = None) -> None:
        if window is not None:
            warnings.warn("windows need another backend", stacklevel=2)
        super().__init__()


class OneOfSeveral(nn.Module):
    """A part that is chosen by a name has the signature of the others."""

    def __init__(self, window: int = 4) -> None:
        super().__init__()
        kinds = {"plain": Stack, "windowed": HandedOn}
        self.inner = kinds["plain"](window=window)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class GivenAll(OneOfSeveral):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Stack(**{"depth": 1, "window": 4})


class Chosen(Stack):
    def __init__(self, window: str = "narrow") -> None:
        assert window in ("narrow", "wide")
        super().__init__()


class SaidBelow(Stack):
    def __init__(self, window: int | None = None) -> None:
        """Make it.

        window: how far each token reads;
            it has no effect here.
        """
        super().__init__()


def keeping(constructor: Any) -> Any:
    @wraps(constructor)
    def kept(self: nn.Module, **given: Any) -> None:
        constructor(self, **given)
        self.given = given

    return kept


class Kept(Stack):
    @keeping
    def __init__(self, window: int | None = None) -> None:
        super().__init__()


class WrittenOut(nn.Module):
    """What no caller can set is left over from an interface."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Stack(
            depth=1,
            window=4,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class PassedOn(WrittenOut):
    def __init__(self, window: int = 4) -> None:
        super().__init__()
        self.inner = Stack(window=window)


def checked(make: Callable[[], nn.Module]) -> Result:
    return run_check(registry.load("FWD238"), embedding_subject(make))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Stack(window=4), "Stack is given window=4, where None is its default"),
        (lambda: Refused(keeps=True), "Refused is given keeps=True, where False is its default"),
        (lambda: PassedOn(window=8), "inner is given window=8"),
        (lambda: nn.Sequential(Stack(2, 4), Stack(2, 4)), "0 (and 1 more of its class) is given window=4"),
    ],
)
def test_what_is_given_and_never_read_is_found_at_its_constructor(make: Callable[[], nn.Module], said: str) -> None:
    (found,) = checked(make).findings
    assert found.message.startswith(said)
    assert linecache.getline(found.where.file, found.where.line).rstrip().endswith("# here")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stack(window=None, depth=2),
        lambda: Refused(keeps=False, causal=True),
        lambda: HandedOn(window=4),
        lambda: KeptBySuper(window=4),
        lambda: SaidToBeUnused(window=4),
        lambda: ReadLater(window=4),
        lambda: Warned(window=4),
        OneOfSeveral,
        GivenAll,
        lambda: Chosen(window="wide"),
        lambda: SaidBelow(window=4),
        lambda: Kept(window=4),
        WrittenOut,
    ],
)
def test_a_default_and_what_has_a_use_are_silent(make: Callable[[], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert checked(make).verdict is Verdict.PASS
