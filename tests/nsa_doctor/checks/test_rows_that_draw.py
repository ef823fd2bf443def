"""Rows that draw as many random numbers as they have words are not compared in training; what mixes rows is found."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from nsa_doctor.core import registry
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject


class DropsWords(nn.Module):
    """Drops values of some ids alone, as many draws as the batch has of them; in training, adds what rows share."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.embed, self.out, self.mixes = nn.Embedding(8, 8), nn.Linear(8, 8), mixes

    def forward(self, ids: Tensor) -> Tensor:
        x, words = self.embed(ids), ids > 3
        if self.mixes and self.training:
            return self.out(dropout(x, 0.2, True) + x.mean(0, keepdim=True))
        dropped = torch.zeros_like(x)
        dropped[words] = dropout(x[words], 0.2, self.training)
        return self.out(torch.where(words[..., None], dropped, x))


@pytest.mark.parametrize("mixes", [False, True])
def test_only_what_mixes_rows_is_found_among_what_draws(mixes: bool) -> None:
    subject = small_subject(lambda: DropsWords(mixes=mixes), input="tokens", width=8, max_length=64)
    assert len(run_check(registry.load("FWD203"), subject).findings) == mixes
