"""A recurrent layer of torch's, whose dropout would stand behind a second one, is named where it is made."""

import linecache
import warnings

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

DIM = 8


class Direct(nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(DIM, DIM, num_layers, dropout=0.1, batch_first=True)  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Listed(nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.rnns = nn.ModuleList([nn.GRU(DIM, DIM, num_layers, dropout=0.1, batch_first=True)])  # here

    def forward(self, x: Tensor) -> Tensor:
        return self.rnns[0](x)[0]


def examined(kind: type[nn.Module], num_layers: int) -> Result:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says so too
            return kind(num_layers)

    subject = Subject(name="x", build=build, forward=lambda module, x: module(x), input="embeddings", width=DIM)
    return run_check(registry.load("FWD231"), subject)


@pytest.mark.parametrize("kind", [Direct, Listed])
def test_a_dropout_between_layers_that_are_one_is_found_where_that_is_made(kind: type[nn.Module]) -> None:
    (finding,) = examined(kind, 1).findings
    assert "the dropout of 0.1" in finding.message
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


@pytest.mark.parametrize("kind", [Direct, Listed])
def test_one_between_two_layers_is_applied(kind: type[nn.Module]) -> None:
    assert examined(kind, 2).verdict is Verdict.PASS
