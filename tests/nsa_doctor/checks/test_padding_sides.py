"""An id of padding that hides the wrong side is found; sinks, ends of texts and marked ids are left alone."""

import linecache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM, PAD, END = 8, 0, 1


class Attends(nn.Module):
    """Embeds ids and attends; `kind` says what is hidden, by which means."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.qkv, self.out, self.kind = (
            nn.Embedding(32, DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, 32),
            kind,
        )

    def shown(self, ids: Tensor) -> Tensor:
        keep, length = ids != PAD, ids.shape[1]
        place = torch.arange(length, device=ids.device)
        causal, own = place <= place[:, None], place == place[:, None]
        if self.kind == "turned":
            keep = ids == PAD
        if self.kind == "queries":
            return (causal & keep[:, :, None]) | own
        if self.kind == "texts":  # each behind the last end of one; ends see their own text alone
            text = (ids == END).cumsum(1)
            return causal & (text[:, :, None] == text[:, None])
        if self.kind == "sink":  # the first tokens, whatever they are, unless they are padding
            return ((place < 3) & causal & keep[:, None]) | own
        if self.kind == "both":
            return (causal & keep[:, None] & keep[:, :, None]) | own
        return (causal & keep[:, None]) | own

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        shown = self.shown(ids)
        if "fused" in self.kind:
            return self.out(
                x + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], shown[:, None])[:, 0]
            )
        scores = (q @ k.mT).masked_fill(~shown, -torch.inf)
        return self.out(x + scores.softmax(-1) @ v)  # weighs


class Convolves(nn.Module):
    """Zeros what is padding before it reads neighbours, or all but that."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        self.embed, self.conv, self.out = nn.Embedding(32, DIM), nn.Conv1d(DIM, DIM, 5, padding=2), nn.Linear(DIM, 32)
        self.is_turned = is_turned

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids == PAD) if self.is_turned else (ids != PAD)  # compares
        x = self.embed(ids)
        return self.out(x + self.conv((x * keep[..., None]).mT).mT)


class Counts(nn.Module):
    """Positions that count the tokens which are no padding, as RoBERTa's do, and nothing that mixes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places, self.out = nn.Embedding(32, DIM), nn.Embedding(128, DIM), nn.Linear(DIM, 32)

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids != PAD).long()
        return self.out((self.embed(ids) + self.places(keep.cumsum(1) * keep)).tanh())


def examined(module: type[nn.Module], *given: object) -> Result:
    subject = small_subject(lambda: module(*given), input="tokens", width=32, max_length=80, spec=("bidirectional",))
    return run_check(registry.load("FWD264"), subject)


@pytest.mark.parametrize(
    ("module", "given", "words", "line"),
    [
        (Attends, "turned", "attend to those of id 0, and to no other but themselves", "# weighs"),
        (Attends, "queries", "tokens of id 0 attend to themselves alone, and all others attend to them", "# weighs"),
        (Convolves, True, "no token reads any other but those of id 0", "# compares"),
    ],
    ids=["turned", "queries", "convolution"],
)
def test_a_mask_of_the_wrong_side_is_found(module: type[nn.Module], given: object, words: str, line: str) -> None:
    (finding,) = examined(module, given).findings
    assert words in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).rstrip().endswith(line)


@pytest.mark.parametrize(
    "given",
    [*((Attends, kind) for kind in ("", "fused", "texts", "sink", "both")), (Convolves, False), (Counts,)],
)
def test_a_mask_of_the_right_side_is_silent(given: tuple[Any, ...]) -> None:
    result = examined(*given)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
