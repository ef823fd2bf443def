"""Weights of a recurrent state are idle where each token is a row, and not where nothing is written yet."""

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM = 8


class Transducer(nn.Module):
    """Joins frames with what reads the labels so far: without any, the blank alone."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.blank, self.is_cell = nn.Parameter(torch.randn(1, 1, DIM)), issubclass(kind, nn.RNNCellBase)
        self.reader = kind(DIM, DIM) if self.is_cell else kind(DIM, DIM, batch_first=True)
        self.mix = nn.Linear(DIM, DIM)

    def read(self, blank: Tensor) -> Tensor:
        answer = self.reader(blank[:, 0] if self.is_cell else blank)
        output: Tensor = answer[0] if isinstance(answer, tuple) else answer
        return output[:, None] if self.is_cell else output

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = (self.mix(x) + self.read(self.blank.expand(len(x), 1, DIM))).tanh()
        return output


class TokensAreRows(Transducer):
    """Each token is a sequence of its own."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.mix(self.read(x.reshape(-1, 1, DIM)).reshape(x.shape) + self.blank).tanh()
        return output


KINDS = [nn.GRU, nn.LSTM, nn.GRUCell, nn.LSTMCell]


@pytest.mark.parametrize("kind", KINDS)
def test_what_reads_labels_before_the_first_is_no_finding(kind: type[nn.Module]) -> None:
    assert run_check(registry.load("GRD208"), embedding_subject(lambda: Transducer(kind))).findings == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_no_token_hands_on_is_found(kind: type[nn.Module]) -> None:
    result = run_check(registry.load("GRD208"), embedding_subject(lambda: TokensAreRows(kind)))
    assert any("weight_hh" in finding.message for finding in result.findings)
