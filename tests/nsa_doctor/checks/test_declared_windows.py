"""FWD303: attention is held to the window that its module or its configuration declares."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Local(nn.Module):
    """Attention to `seen` tokens; `holder` is what declares a window of 32, under a name."""

    def __init__(self, name: str, seen: int, is_configured: bool = False) -> None:
        super().__init__()
        self.qkv, self.seen = nn.Linear(DIM, 3 * DIM), seen
        holder = SimpleNamespace() if is_configured else self
        setattr(holder, name, 32)
        self.config = holder if is_configured else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().triu(1 - self.seen)
        return scaled_dot_product_attention(q, k, v, attn_mask=seen)


def examined(name: str, seen: int, is_configured: bool = False) -> Result:
    return examined_as(lambda: Local(name, seen, is_configured))


def examined_as(make: Callable[[], nn.Module]) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    forward = lambda module, x: module(x)  # noqa: E731
    subject = Subject(
        name="tests", build=build, forward=forward, input="embeddings", width=DIM, max_length=128, packages=("tests",)
    )
    return run_check(registry.load("FWD303"), subject)


@pytest.mark.parametrize("is_configured", [False, True], ids=["attribute", "configuration"])
@pytest.mark.parametrize(("name", "seen"), [("sliding_window", 33), ("sliding_window", 31), ("window_size", 31)])
def test_a_token_too_many_or_too_few_is_found(name: str, seen: int, is_configured: bool) -> None:
    (finding,) = examined(name, seen, is_configured).findings
    assert f"sees {seen} tokens, the query's own among them, and {name} is 32" in finding.message
    assert finding.where.file == __file__


def test_a_window_that_may_not_count_the_token_itself_is_a_note() -> None:
    result = examined("window", 33)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert ["which may not count it" in note for note in result.notes] == [True]


@pytest.mark.parametrize(
    ("name", "seen"), [("sliding_window", 32), ("window", 32), ("window_size", 16), ("window", 999)]
)
def test_what_is_declared_or_another_thing_passes(name: str, seen: int) -> None:
    result = examined(name, seen)
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_without_a_window_it_does_not_apply() -> None:
    result = examined("width", 32)
    assert (result.verdict, result.is_required) == (Verdict.SKIP, False)


class Band(nn.Module):
    """Attention whose mask another function makes, in one of several forms, of one `sliding_window`."""

    def __init__(self, form: str, seen: int, declared: int = 32) -> None:
        super().__init__()
        self.qkv, self.sliding_window, self.form, self.seen = nn.Linear(DIM, 3 * DIM), declared, form, seen

    def mask(self, length: int) -> Tensor:
        t = torch.arange(length)
        past = t[:, None] - t
        if self.form == "largest":
            band = torch.ones(200, 200, dtype=torch.bool).tril().triu(1 - self.seen)  # largest
            return band[:length, :length]
        if self.form == "hidden":
            hidden = past >= self.seen  # hidden
            return ~(hidden | (past < 0))
        near = past < self.seen  # near
        return near & (past >= 0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT
        if self.form == "subtracted":
            far = torch.zeros_like(scores)
            for shift in range(self.seen, x.shape[1]):
                far = far + torch.diag_embed(scores.new_full((x.shape[1] - shift,), 1e30), -shift)
            seen = torch.ones_like(scores).tril().bool()
            return (scores - far).masked_fill(~seen, -1e30).softmax(-1) @ v  # subtracted
        return scores.masked_fill(~self.mask(x.shape[1]), -1e30).softmax(-1) @ v


class Wrapped(nn.Module):
    """Parts in turn, under a `window` of the wrapper's own."""

    def __init__(self, *parts: nn.Module, window: int = 32) -> None:
        super().__init__()
        self.parts, self.window = nn.ModuleList(parts), window

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


@pytest.mark.parametrize("form", ["largest", "hidden", "near", "subtracted"])
def test_a_window_is_found_where_its_mask_is_made_whatever_else_declares_it(form: str) -> None:
    (finding,) = examined_as(lambda: Wrapped(Band(form, 33))).findings
    assert "sees 33 tokens, the query's own among them, and sliding_window is 32" in finding.message
    assert finding.where.file == __file__
    assert Path(__file__).read_text("utf-8").splitlines()[(finding.where.line or 0) - 1].endswith(f"# {form}")


@pytest.mark.parametrize("form", ["largest", "hidden", "near", "subtracted"])
def test_a_window_as_it_is_declared_passes_in_every_form(form: str) -> None:
    result = examined_as(lambda: Wrapped(Band(form, 32)))
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())


def test_layers_of_several_windows_are_each_held_to_their_own() -> None:
    result = examined_as(lambda: Wrapped(Band("near", 31, 31), Band("near", 32, 32), Band("largest", 33, 33)))
    assert (result.verdict, result.findings, result.notes) == (Verdict.PASS, (), ())
