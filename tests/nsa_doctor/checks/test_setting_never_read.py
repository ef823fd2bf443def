"""A setting that a constructor never reads is found; one that has a use, or is said to have none, is not."""

import linecache
import warnings
from typing import Any

import pytest
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

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
    def __init__(self, window: int | None = None) -> None:  # here
        if window is not None:
            warnings.warn("windows need another backend", stacklevel=2)
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


def checked(kind: type[nn.Module], **given: Any) -> Result:
    subject = Subject(
        name="tests",
        build=lambda seed: kind(**given),
        forward=lambda module, x: module(x),
        input="embeddings",
        width=DIM,
        packages=("tests",),
    )
    return run_check(registry.load("FWD238"), subject)


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [(Stack, {"window": 4}, "window"), (Refused, {"keeps": True}, "keeps"), (Warned, {"window": 4}, "window")],
)
def test_what_is_given_and_never_read_is_found_at_its_constructor(
    kind: type[nn.Module], given: dict[str, Any], name: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = checked(kind, **given).findings
    assert f"is given {name}={given[name]!r}" in found.message
    assert linecache.getline(found.where.file, found.where.line).rstrip().endswith("# here")


def test_what_is_handed_down_and_then_not_read_is_found() -> None:
    (found,) = checked(PassedOn, window=8).findings
    assert found.message.startswith("inner is given window=8")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Stack, {"window": None, "depth": 2}),
        (Refused, {"keeps": False, "causal": True}),
        (HandedOn, {"window": 4}),
        (KeptBySuper, {"window": 4}),
        (SaidToBeUnused, {"window": 4}),
        (ReadLater, {"window": 4}),
        (WrittenOut, {}),
    ],
)
def test_a_default_and_what_has_a_use_are_silent(kind: type[nn.Module], given: dict[str, Any]) -> None:
    assert checked(kind, **given).verdict is Verdict.PASS
