"""FWD303: attention is held to the window that its module or its configuration declares."""

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
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Local(name, seen, is_configured)

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
